"""Explore schedules on a local web page.

Only this machine can open the page. The options choose the initial settings.

Example:
  ringloom explore --open
  ringloom explore zigzag --ranks 16 --seq 64k --mask window:4096
  ringloom explore --hardware h100 --straggler 3=0.5 --topology switch
"""

import gc
import socket
from typing import Any

import click

from ringloom.cli.options import hardware_option, pop_scenario, scenario_options, workload_options
from ringloom.cli.output import Integer, show
from ringloom.explore.choices import Choices, from_scenario
from ringloom.planner.errors import RingloomError
from ringloom.planner.optional import import_optional
from ringloom.views.units import length

HOST = "127.0.0.1"  # the loopback address, which other machines cannot reach
SESSION_LIFETIME = 15_000  # milliseconds until a session without a page is deleted


@click.command()
@click.argument("schedule", default=Choices().schedule)
@click.option(
    "--port",
    type=Integer(0, 65535),
    default=5006,
    help="Port number; 0 chooses a free port.",
)
@click.option("--open/--no-open", "open_page", default=False, help="Open the page in a browser.")
@workload_options(omit=("batch", "dtype", "tensor_parallel"))
@hardware_option
@scenario_options
def command(port: int, open_page: bool, pass_: str, **options: Any) -> None:
    scenario, lengths = pop_scenario(options), ("seq", "kv_seq")
    options |= {"pass": pass_}
    options |= {name: options[name] and length(options[name]) for name in lengths}
    settings = {name: value for name, value in options.items() if value is not None}
    choices = from_scenario(scenario, **settings)
    panel, session = (
        import_optional("app", "panel"),
        import_optional("app", "ringloom.explore.session"),
    )
    server, page = serve(panel, session, free_port(port)), f"/{choices.address.rstrip('?')}"
    url = f"http://{HOST}:{server.port}{page}"
    if open_page:
        server.io_loop.add_callback(server.show, page)
    gc.collect()
    gc.freeze()  # collections that scan the objects of libraries would delay a redraw
    show({"url": url}, text=f"{url} (stop with Ctrl-C)")
    try:
        server.io_loop.start()
    except KeyboardInterrupt:
        server.stop()


def serve(panel: Any, session: Any, port: int) -> Any:
    """Returns a server that is not started yet and refuses connections from other sites."""
    server = panel.serve(
        {"/": lambda: session.Session().page()},
        port=port,
        address=HOST,
        websocket_origin=[f"{HOST}:{port}", f"localhost:{port}"],
        show=False,
        start=False,
        verbose=False,
        title="ringloom explore",
        unused_session_lifetime_milliseconds=SESSION_LIFETIME,
        check_unused_sessions_milliseconds=SESSION_LIFETIME,
    )
    session.guard(server)
    return server


def free_port(port: int) -> int:
    """Returns the port, or a free port for 0; raises RingloomError if the port is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise RingloomError(
                f"port {port}: {error.strerror}; use --port 0 to choose a free port"
            ) from None
        number: int = probe.getsockname()[1]
    return number
