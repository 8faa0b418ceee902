"""sweep(grid, folder)   computes every point of a grid once and resumes after an interruption.

Workers compute one batch after the other. Only the main process stores results, so workers need no
shared file system.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringloom.planner.errors import RingloomError
from ringloom.planner.optional import import_optional
from ringloom.planner.version import VERSION
from ringloom.runtimes.machine import holding_interrupts
from ringloom.simulator.prediction import ratio
from ringloom.sweeps.grid import Grid, Row, grid_of, outcome, read_grid
from ringloom.sweeps.store import Store, open_store
from ringloom.sweeps.workers import workers

Batch = list[int]
Track = Callable[[list[Batch]], Iterable[Batch]]
POINTS_PER_WORKER = 4  # in one batch
CLOSE = 1.1  # largest ratio to the fastest time that counts as close


@dataclass(frozen=True)
class Sweep:
    """The rows of a sweep in the order of its grid, and the files with the results.

    Rows start with the `keys` of the grid. `computed`: number of points computed in this run; the
    other points were stored by earlier runs.
    """

    rows: list[Row]
    keys: tuple[str, ...]
    computed: int
    files: tuple[Path, ...]

    def __repr__(self) -> str:
        return f"<Sweep of {len(self.rows)} points, {len(self.refused)} of which cannot run>"

    @property
    def refused(self) -> list[Row]:
        """Returns the rows of points that cannot run, each with its `reason`."""
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
    """Simulates every point of a grid on many processes or machines; resumes interrupted sweeps.

    `grid`: a TOML file, or its content as a dictionary. `folder`: stores each result, so that the
    same call computes only missing points, then receives results.parquet, results.csv and
    summary.svg, which depend only on the grid. They have a row per point, in the order of the grid,
    with seconds and bytes from `rl.simulate`, or the `reason` why the point cannot run. `backend`:
    "loky", or "dask" or "ray" at an `address`. `jobs`: number of processes, by default one per core
    or worker. `track` may wrap the batches to show progress. Raises RingloomError for an invalid
    grid, for a folder of another grid, and for a worker that dies.
    """
    results = import_optional("sweep", "ringloom.sweeps.results")
    points = grid_of(grid) if isinstance(grid, Mapping) else read_grid(grid)
    with open_store(Path(folder), points.digest) as store:
        missing = [number for number in range(len(points)) if number not in store.rows]
        if missing:
            with workers(backend, address, jobs) as count:
                compute(points, store, batches(missing, POINTS_PER_WORKER * count), track)
        rows = [store.rows[number] for number in range(len(points))]
    keys = tuple(points.axes)
    files = tuple(results.write(rows, keys, Path(folder)))
    return Sweep(rows, keys, len(missing), files)


def batches(numbers: Batch, length: int) -> list[Batch]:
    """Splits numbers into lists of a given length; the last may be shorter."""
    return [numbers[start : start + length] for start in range(0, len(numbers), length)]


def compute(grid: Grid, store: Store, batches: list[Batch], track: Track) -> None:
    """Computes the batches in turn and stores each before the next starts."""
    joblib = import_optional("sweep", "joblib")
    with joblib.Parallel() as parallel:
        with holding_interrupts():  # so that workers print no tracebacks
            parallel([joblib.delayed(len)("")])
        for batch in track(batches):
            calls: Iterator[Any] = (
                joblib.delayed(outcome)(*grid.point(number), VERSION) for number in batch
            )
            try:
                store.add(dict(zip(batch, parallel(calls), strict=True)))
            except BrokenExecutor as error:
                raise RingloomError(
                    f"a worker died on one of the points {batch[0]} to {batch[-1]}, perhaps for"
                    f" lack of memory (use fewer --jobs); earlier batches are stored: {error}"
                ) from None


# ---- standings: the time of each schedule relative to the fastest schedule of the same cell


@dataclass(frozen=True)
class Standing:
    """The ratios of one schedule's time to the fastest time on one machine, one per cell.

    The points of a cell differ only in the schedule. `cells`: number of cells in which at least one
    schedule can run.
    """

    hardware: str
    schedule: str
    ratios: tuple[float, ...]  # ascending
    cells: int
    refused: int  # points that cannot run

    def within(self, ratio: float) -> float:
        """Returns the fraction of cells in which the time is at most `ratio` times the fastest."""
        return sum(r <= ratio for r in self.ratios) / self.cells if self.cells else 0.0


def standings(rows: Sequence[Row], keys: Sequence[str]) -> list[Standing]:
    """Returns a standing per machine and schedule, in the order of the grid."""
    cell_keys = [key for key in keys if key != "schedule"]
    times = dict[tuple[object, ...], dict[str, float]]()
    ratios, refused = dict[tuple[str, str], list[float]](), Counter[tuple[str, str]]()
    for row in rows:
        name = row["hardware"], row["schedule"]
        ratios.setdefault(name, [])
        if row.get("reason"):
            refused[name] += 1
        else:
            cell = times.setdefault(tuple(row[key] for key in cell_keys), {})
            cell[row["schedule"]] = row["makespan_s"]
    cells = dict.fromkeys((hardware for hardware, _ in ratios), 0)
    for labels, cell in times.items():
        hardware, fastest = str(labels[cell_keys.index("hardware")]), min(cell.values())
        cells[hardware] += 1
        for schedule, seconds in cell.items():
            ratios[hardware, schedule].append(ratio(seconds, fastest))
    return [
        Standing(*name, tuple(sorted(values)), cells[name[0]], refused[name])
        for name, values in ratios.items()
    ]
