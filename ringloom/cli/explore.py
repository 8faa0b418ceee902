"""Explore schedules on a local page of this machine.

Only this machine can reach the page.

Example:
  ringloom explore --open
"""

import gc

import click

from ringloom.cli.output import show
from ringloom.explore.serving import HOST, free, serve
from ringloom.optional import needing


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=5006, help="0 takes a free port.")
@click.option("--open/--no-open", "opening", default=False, help="Open the page in a browser.")
def command(port: int, opening: bool) -> None:
    panel, session = needing("app", "panel"), needing("app", "ringloom.explore.session")
    server = serve(panel, session, free(port), opening)
    url = f"http://{HOST}:{server.port}/"
    gc.collect()
    gc.freeze()  # what libraries hold stays: looking through it takes longer than a redraw may
    show({"url": url}, f"{url} until Ctrl-C")
    try:
        server.io_loop.start()
    except KeyboardInterrupt:
        server.stop()
