"""Draw figures of papers or of your own workload as SVG and PNG.

With --ranks and --seq, the command draws timeline, load, memory and traffic of each schedule.

Example:
  ringloom figures --ranks 8 --seq 256k --kv-heads 8 --schedules ring,zigzag
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from ringloom.cli.options import compare_schedules, comparison_options, refuse_typed
from ringloom.cli.output import progress, show
from ringloom.planner.optional import import_optional

FIGURES = {  # file name: module and function
    "tiles_per_round": ("ringloom.figures.rounds", "rounds"),
    "eight_workers": ("ringloom.figures.workers", "workers"),
    "striped_speedups": ("ringloom.figures.speedups", "speedups"),
}
FORMATS = ("svg", "png")
MAX_SCHEDULES = 2  # schedules to draw when none are named


@click.command()
@comparison_options(MAX_SCHEDULES)
@click.option("-o", "--output", default="figures", help="Output folder.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice([*FORMATS, "both"]),
    default="both",
    help="File format.",
)
def command(output: str, file_format: str, **options: Any) -> None:
    sheet = import_optional("plots", "ringloom.figures.sheet")
    formats = FORMATS if file_format == "both" else (file_format,)
    drawings: dict[str, Callable[[], Any]] = {}
    if options["ranks"] is not None or options["seq"] is not None:
        drawings |= sheet.drawings(compare_schedules(options, MAX_SCHEDULES))
    else:
        refuse_typed(options, "without --ranks and --seq, the command draws figures of papers")
        for name, (module, function) in FIGURES.items():
            drawings[name] = getattr(import_module(module), function)
    files = list[Path]()
    for name in progress(drawings, "drawing"):
        files += sheet.write(drawings[name], name, Path(output), formats)
    names = [str(file) for file in files]
    show({"files": names}, text="\n".join(names))
