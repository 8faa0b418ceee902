"""Simulate every combination in a grid of workloads and machines.

The grid file sets command-line options, each to a value or a list of values. Results are saved as
they are computed: after an interruption, the same command continues.

Example:
  ringloom sweep grid.toml -o sweep
"""

from functools import partial
from pathlib import Path

import click
from rich.table import Table

from ringloom.cli.output import Whole, progress, show
from ringloom.sweeps.run import CLOSE, Sweep, standings, sweep
from ringloom.sweeps.workers import BACKENDS
from ringloom.views.tables import plain_table
from ringloom.views.units import counted


def standing_table(result: Sweep) -> Table:
    """Returns how often each schedule is fastest, close to fastest, or cannot run."""
    heads = "hardware", "schedule", "fastest", f"within {CLOSE - 1:.0%}", "cannot run"
    lines = (
        (s.hardware, s.schedule, f"{s.within(1.0):.0%}", f"{s.within(CLOSE):.0%}", str(s.refused))
        for s in standings(result.rows, result.keys)
    )
    return plain_table(*heads, rows=lines, numbers=slice(2, None))


@click.command()
@click.argument("grid", metavar="GRID.toml", type=click.Path(path_type=Path))
@click.option(
    *("-o", "--output"), type=click.Path(file_okay=False), required=True, help="Output folder."
)
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="loky",
    help="loky: processes on this machine; dask, ray: a cluster.",
)
@click.option("--address", help="Address of a Dask scheduler or Ray cluster.  [default: start one]")
@click.option("--jobs", type=Whole(1), help="Number of processes.  [default: one per core]")
def command(grid: Path, output: str, backend: str, address: str | None, jobs: int | None) -> None:
    bar = partial(progress, verb="predicting")
    result = sweep(grid, output, backend=backend, address=address, jobs=jobs, track=bar)
    files = [str(file) for file in result.files]
    document = {
        "points": len(result.rows),
        "refused": len(result.refused),
        "computed": result.computed,
        "files": files,
    }
    said = f"{counted(len(result.rows), 'point')}, {len(result.refused)} of which cannot run"
    show(document, said, standing_table(result), text="\n".join(files))
