"""A server of the local page, on the loopback address only."""

import socket
from typing import Any

from planner.errors import RingloomError

HOST = "127.0.0.1"


def serve(panel: Any, session: Any, port: int) -> Any:
    """A server that is not yet running its loop; pages of other origins cannot talk to it."""
    return panel.serve(
        {"/": lambda: session.Session().page()},
        port=port,
        address=HOST,
        websocket_origin=[f"{HOST}:{port}", f"localhost:{port}"],
        show=False,
        start=False,
        verbose=False,
        title="ringloom explore",
    )


def free(port: int) -> int:
    """The port, or any free one for 0; raises RingloomError for one that is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise RingloomError(
                f"port {port}: {error.strerror}; --port 0 takes a free one"
            ) from None
        number: int = probe.getsockname()[1]
    return number
