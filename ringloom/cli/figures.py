"""The papers' figures drawn from our plans, as SVG and PNG."""

from importlib import import_module
from pathlib import Path

import click

from ringloom.cli.output import json_option, show
from ringloom.cli.progress import progress
from ringloom.optional import needing

FIGURES = {  # name of the file: module and function
    "tiles_per_round": ("ringloom.figures.rounds", "rounds"),
    "eight_workers": ("ringloom.figures.workers", "workers"),
    "striped_speedups": ("ringloom.figures.speedups", "speedups"),
}
FORMATS = ("svg", "png")


@click.command(help=__doc__)
@click.option("-o", "--output", default="figures", show_default=True, help="A folder.")
@click.option("--format", "kind", type=click.Choice([*FORMATS, "both"]), default="both")
@json_option
def command(output: str, kind: str, as_json: bool) -> None:
    sheet = needing("plots", "ringloom.figures.sheet")
    formats = FORMATS if kind == "both" else (kind,)
    files = list[Path]()
    for name in progress(FIGURES, "drawing"):
        module, function = FIGURES[name]
        files += sheet.write(getattr(import_module(module), function), name, Path(output), formats)
    show(as_json, {"files": [str(file) for file in files]}, *map(str, files))
