"""Draw figures of papers or of your own workload as SVG and PNG.

With --ranks and --seq, draws timeline, load, memory and traffic of each schedule.

Example:
  ringloom figures --ranks 8 --seq 256k --kv-heads 8 --schedules ring,zigzag
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from ringloom.cli.options import compared, comparison_options, refuse_typed
from ringloom.cli.output import progress, show
from ringloom.planner.optional import needing

FIGURES = {  # name of the file: module and function
    "tiles_per_round": ("ringloom.figures.rounds", "rounds"),
    "eight_workers": ("ringloom.figures.workers", "workers"),
    "striped_speedups": ("ringloom.figures.speedups", "speedups"),
}
FORMATS = ("svg", "png")
MOST = 2  # schedules to draw when none are named


@click.command()
@comparison_options(MOST)
@click.option("-o", "--output", default="figures", help="Output folder.")
@click.option(
    "--format",
    "kind",
    type=click.Choice([*FORMATS, "both"]),
    default="both",
    help="File format.",
)
def command(output: str, kind: str, **given: Any) -> None:
    sheet = needing("plots", "ringloom.figures.sheet")
    formats = FORMATS if kind == "both" else (kind,)
    own_case = given["ranks"] is not None or given["seq"] is not None
    drawings: dict[str, Callable[[], Any]] = {}
    if own_case:
        drawings |= sheet.drawings(compared(given, MOST))
    else:
        refuse_typed(given, "without --ranks and --seq, figures of the papers are drawn")
        for name, (module, function) in FIGURES.items():
            drawings[name] = getattr(import_module(module), function)
    files = list[Path]()
    for name in progress(drawings, "drawing"):
        files += sheet.write(drawings[name], name, Path(output), formats)
    names = [str(file) for file in files]
    show({"files": names}, text="\n".join(names))
