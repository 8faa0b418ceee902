"""Simulate every combination in a grid of workloads and machines.

The grid file sets each command-line option to a value or a list of values. Results are saved as
they are computed; after an interruption, repeat the same command to continue.

Example:
  ringloom sweep grid.toml -o sweep
"""

from functools import partial
from pathlib import Path

import click
from rich.table import Table

from ringloom.cli.output import Integer, progress, show
from ringloom.sweeps.run import CLOSE, Sweep, standings, sweep
from ringloom.sweeps.workers import BACKENDS
from ringloom.views.tables import plain_table
from ringloom.views.units import counted


def standing_table(result: Sweep) -> Table:
    """Returns a table of how often each schedule is fastest, is nearly fastest, or cannot run."""
    headings = "hardware", "schedule", "fastest", f"within {CLOSE - 1:.0%}", "cannot run"
    lines = (
        (s.hardware, s.schedule, f"{s.within(1.0):.0%}", f"{s.within(CLOSE):.0%}", str(s.refused))
        for s in standings(result.rows, result.keys)
    )
    return plain_table(*headings, rows=lines, numbers=slice(2, None))


@click.command()
@click.argument("grid", metavar="GRID.toml", type=click.Path(path_type=Path))
@click.option(
    *("-o", "--output"), type=click.Path(file_okay=False), required=True, help="Output folder."
)
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="loky",
    help="Where to compute; loky: on this machine; dask, ray: on a cluster.",
)
@click.option(
    "--address",
    help="Address of a Dask scheduler or Ray cluster.  [default: start a local one]",
)
@click.option("--jobs", type=Integer(1), help="Number of processes.  [default: one per core]")
def command(grid: Path, output: str, backend: str, address: str | None, jobs: int | None) -> None:
    track = partial(progress, verb="predicting")
    result = sweep(grid, output, backend=backend, address=address, jobs=jobs, track=track)
    files = [str(file) for file in result.files]
    document = {
        "points": len(result.rows),
        "refused": len(result.refused),
        "computed": result.computed,
        "files": files,
    }
    title = f"{counted(len(result.rows), 'point')}, {len(result.refused)} of which cannot run"
    show(document, title, standing_table(result), text="\n".join(files))
