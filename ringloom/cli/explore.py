"""Explore schedules on a local web page.

Only this machine can open the page. It starts with the settings of these options.

Example:
  ringloom explore --open
  ringloom explore zigzag --ranks 16 --seq 64k --mask window:4096
  ringloom explore --hardware h100 --straggler 3=0.5 --topology switch
"""

import gc
import socket
from typing import Any

import click

from ringloom.cli.options import hardware_option, scenario_of, scenario_options, workload_options
from ringloom.cli.output import Whole, show
from ringloom.explore.choices import Choices, from_scenario
from ringloom.planner.errors import RingloomError
from ringloom.planner.optional import needing
from ringloom.views.units import length

HOST = "127.0.0.1"  # the loopback address only
UNUSED = 15_000  # milliseconds after which a session without a page is forgotten


@click.command()
@click.argument("schedule", default=Choices().schedule)
@click.option("--port", type=Whole(0, 65535), default=5006, help="Port; 0 chooses a free one.")
@click.option("--open/--no-open", "opening", default=False, help="Open the page in a browser.")
@workload_options(without=("batch", "dtype", "tensor_parallel"))
@hardware_option
@scenario_options
def command(port: int, opening: bool, pass_: str, **given: Any) -> None:
    scenario, sides = scenario_of(given), ("seq", "kv_seq")
    given |= {"pass": pass_} | {side: given[side] and length(given[side]) for side in sides}
    typed = {name: value for name, value in given.items() if value is not None}
    choices = from_scenario(scenario, **typed)
    panel, session = needing("app", "panel"), needing("app", "ringloom.explore.session")
    server, page = serve(panel, session, free(port)), f"/{choices.address.rstrip('?')}"
    url = f"http://{HOST}:{server.port}{page}"
    if opening:
        server.io_loop.add_callback(server.show, page)
    gc.collect()
    gc.freeze()  # a scan of the libraries' objects would delay a redraw
    show({"url": url}, text=f"{url} (stop with Ctrl-C)")
    try:
        server.io_loop.start()
    except KeyboardInterrupt:
        server.stop()


def serve(panel: Any, session: Any, port: int) -> Any:
    """Returns a server whose loop is not running yet; pages of other sites cannot connect."""
    server = panel.serve(
        {"/": lambda: session.Session().page()},
        port=port,
        address=HOST,
        websocket_origin=[f"{HOST}:{port}", f"localhost:{port}"],
        show=False,
        start=False,
        verbose=False,
        title="ringloom explore",
        unused_session_lifetime_milliseconds=UNUSED,
        check_unused_sessions_milliseconds=UNUSED,
    )
    session.guard(server)
    return server


def free(port: int) -> int:
    """Returns the port, or a free one for 0; raises RingloomError if it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise RingloomError(
                f"port {port}: {error.strerror}; --port 0 chooses a free one"
            ) from None
        number: int = probe.getsockname()[1]
    return number
