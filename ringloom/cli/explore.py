"""Play with schedules on a local page; only this machine can reach it."""

import gc
from importlib import import_module

import click

from planner.errors import PlanError
from ringloom.cli.output import json_option, show
from ringloom.explore.serving import HOST, free, serve


@click.command(help=__doc__)
@click.option("--port", type=click.IntRange(0, 65535), default=5006, show_default=True,
              help="0 takes a free one.")  # fmt: skip
@click.option("--open/--no-open", "opening", default=False, help="Open a browser on it.")
@json_option
def command(port: int, opening: bool, as_json: bool) -> None:
    try:
        panel, session = import_module("panel"), import_module("ringloom.explore.session")
    except ModuleNotFoundError as error:
        raise PlanError(f"explore needs {error.name}: pip install 'ringloom[app]'") from None
    server = serve(panel, session, free(port), opening)
    url = f"http://{HOST}:{server.port}/"
    gc.collect()
    gc.freeze()  # what libraries hold stays: looking through it takes longer than a redraw may
    show(as_json, {"url": url}, f"{url} until Ctrl-C")
    try:
        server.io_loop.start()
    except KeyboardInterrupt:
        server.stop()
