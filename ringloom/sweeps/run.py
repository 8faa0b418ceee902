"""sweep(grid, folder)   computes every point of a grid once, even if it is interrupted.

Workers compute one batch after another. Only this process stores results, so workers need no shared
file system.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringloom.planner.errors import RingloomError
from ringloom.planner.optional import needing
from ringloom.planner.version import VERSION
from ringloom.runtimes.machine import holding_interrupts
from ringloom.simulator.prediction import ratio
from ringloom.sweeps.grid import Grid, Row, grid_of, outcome, read_grid
from ringloom.sweeps.store import Store, opened
from ringloom.sweeps.workers import workers

Batch = list[int]
Track = Callable[[list[Batch]], Iterable[Batch]]
PER_WORKER = 4  # points per worker and batch
CLOSE = 1.1  # times the fastest


@dataclass(frozen=True)
class Sweep:
    """The rows of a sweep in the order of its grid, and the files with the results.

    Rows begin with the `keys` of the grid. `computed` points are new in this run; the others were
    stored by earlier runs.
    """

    rows: list[Row]
    keys: tuple[str, ...]
    computed: int
    files: tuple[Path, ...]

    def __repr__(self) -> str:
        return f"<Sweep of {len(self.rows)} points, {len(self.refused)} of which cannot run>"

    @property
    def refused(self) -> list[Row]:
        """Rows of points that cannot run, each with its `reason`."""
        return [row for row in self.rows if row.get("reason")]


def sweep(
    grid: Mapping[str, Any] | str | Path,
    folder: str | Path,
    *,
    backend: str = "loky",
    address: str | None = None,
    jobs: int | None = None,
    track: Track = iter,
) -> Sweep:
    """Predicts every point of a grid on many processes or machines; resumes interrupted sweeps.

    The grid is a TOML file or its content as a dictionary. `folder` keeps the results, so that
    the same call computes only missing points, and finally writes results.parquet, results.csv and
    summary.svg, which depend on the grid alone: a row per point, in the order of the grid, with
    seconds and bytes from `rl.simulate`, or the `reason` why the point cannot run. `backend`:
    "loky", "dask" or "ray", the latter two at an `address`; `jobs`: processes, by default all.
    `track` may wrap the batches, to show progress. Raises RingloomError for an invalid grid, for
    a folder of another grid, and for a worker that dies.
    """
    results = needing("sweep", "ringloom.sweeps.results")
    points = grid_of(grid) if isinstance(grid, Mapping) else read_grid(grid)
    with opened(Path(folder), points.digest) as store:
        missing = [number for number in range(len(points)) if number not in store.rows]
        if missing:
            with workers(backend, address, jobs) as count:
                compute(points, store, batches(missing, PER_WORKER * count), track)
        rows = [store.rows[number] for number in range(len(points))]
    keys = tuple(points.axes)
    files = tuple(results.write(rows, keys, Path(folder)))
    return Sweep(rows, keys, len(missing), files)


def batches(numbers: Batch, length: int) -> list[Batch]:
    """Splits numbers into lists of a given length; the last may be shorter."""
    return [numbers[at : at + length] for at in range(0, len(numbers), length)]


def compute(grid: Grid, store: Store, todo: list[Batch], track: Track) -> None:
    """Computes batches in turn and stores each before the next begins."""
    joblib = needing("sweep", "joblib")
    with joblib.Parallel() as parallel:
        with holding_interrupts():  # in workers, to avoid their tracebacks
            parallel([joblib.delayed(len)("")])
        for batch in track(todo):
            calls: Iterator[Any] = (
                joblib.delayed(outcome)(*grid.point(number), VERSION) for number in batch
            )
            try:
                store.add(dict(zip(batch, parallel(calls), strict=True)))
            except BrokenExecutor as error:
                raise RingloomError(
                    f"a worker died on one of the points {batch[0]} to {batch[-1]}, perhaps for"
                    f" lack of memory (fewer --jobs need less); the others are kept: {error}"
                ) from None


# ---- standings: the time of each schedule relative to the fastest one of the same grid cell


@dataclass(frozen=True)
class Standing:
    """One schedule on one machine: its time / the fastest time, in each cell in which it runs.

    The points of a cell differ only in the schedule; `cells` counts cells in which any can run.
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
    """Returns a standing per machine and schedule, in the order of the grid."""
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
            names[hardware, schedule].append(ratio(seconds, fastest))
    return [
        Standing(*name, tuple(sorted(ratios)), cells[name[0]], refused[name])
        for name, ratios in names.items()
    ]
