"""`ringloom explore`: the local page, on the loopback address only."""

import gc
import socket
from importlib import import_module
from typing import Any

import click

from planner.errors import PlanError
from ringloom.output import json_option, show

HOST = "127.0.0.1"


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=5006, show_default=True,
              help="0 takes a free one.")  # fmt: skip
@click.option("--open/--no-open", "opening", default=False, help="Open a browser on it.")
@json_option
def explore(port: int, opening: bool, as_json: bool) -> None:
    """Play with schedules on a local page; only this machine can reach it."""
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


def serve(panel: Any, session: Any, port: int, opening: bool = False) -> Any:
    """A server that is not yet running its loop; pages of other origins cannot talk to it."""
    return panel.serve(
        {"/": lambda: session.Session().page()},
        port=port,
        address=HOST,
        websocket_origin=[f"{HOST}:{port}", f"localhost:{port}"],
        show=opening,
        start=False,
        verbose=False,
        title="ringloom explore",
    )


def free(port: int) -> int:
    """The port, or any free one for 0; raises PlanError for one that is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise PlanError(f"port {port}: {error.strerror}; --port 0 takes a free one") from None
        found: int = probe.getsockname()[1]
    return found
