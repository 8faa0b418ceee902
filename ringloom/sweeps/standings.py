"""Standings: how near each schedule comes to the fastest one of the same grid cell."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ringloom.sweeps.grid import Row

CLOSE = 1.1  # times the fastest


@dataclass(frozen=True)
class Standing:
    """One schedule on one machine: its time over the fastest one's, in the cells where it runs.

    A cell is all points that differ in nothing but the schedule; `cells` counts those in which any
    schedule can run.
    """

    hardware: str
    schedule: str
    ratios: tuple[float, ...]  # ascending
    cells: int
    refused: int  # points that cannot run

    def within(self, ratio: float) -> float:
        """Returns the share of cells where the schedule takes at most `ratio` times the fastest."""
        return sum(r <= ratio for r in self.ratios) / self.cells if self.cells else 0.0


def standings(rows: Sequence[Row], keys: Sequence[str]) -> list[Standing]:
    """Returns a standing per machine and schedule, in the order of the grid of these keys."""
    others = [key for key in keys if key != "schedule"]
    times = dict[tuple[object, ...], dict[str, float]]()
    names, refused = dict[tuple[str, str], list[float]](), Counter[tuple[str, str]]()
    for row in rows:
        name = row["hardware"], row["schedule"]
        names.setdefault(name, [])
        if row.get("reason"):
            refused[name] += 1
        else:
            cell = times.setdefault(tuple(row[key] for key in others), {})
            cell[row["schedule"]] = row["makespan_s"]
    cells = dict.fromkeys((hardware for hardware, _ in names), 0)
    for place, cell in times.items():
        hardware, fastest = str(place[others.index("hardware")]), min(cell.values())
        cells[hardware] += 1
        for schedule, seconds in cell.items():
            names[hardware, schedule].append(seconds / fastest)
    return [
        Standing(*name, tuple(sorted(ratios)), cells[name[0]], refused[name])
        for name, ratios in names.items()
    ]
