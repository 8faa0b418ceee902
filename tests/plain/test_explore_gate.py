"""The local page answers to its own address and its own page, and to nobody else."""

import base64
import json
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from process_trees import begun
from ringloom.explore import gate
from ringloom.explore.gate import MOST_SESSIONS, Gate

EVIL = "http://evil.example"


class Server:
    """A server in another process: raw requests in, statuses and texts out."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.host, self.origin = f"127.0.0.1:{port}", f"http://127.0.0.1:{port}"

    def ask(self, path: str, **headers: str) -> tuple[int, str]:
        """Returns the status and the text of an answer; the Host is its own if not said."""
        named = {"Host": self.host, "Connection": "close"}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
        with socket.create_connection(("127.0.0.1", self.port), 60) as wire:
            wire.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            answer = b""
            upgraded = "Upgrade" in headers
            while not (upgraded and b"\r\n\r\n" in answer) and (more := wire.recv(1 << 16)):
                answer += more
        text = answer.decode(errors="replace")
        return int(text.split()[1]), text

    def connect(self, token: str, **headers: str) -> int:
        """Returns the status of a request for a connection."""
        asked = {
            "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Protocol": f"bokeh, {token}", "Origin": self.origin,
        }  # fmt: skip
        return self.ask("/ws", **asked | headers)[0]

    def token(self) -> str:
        """Opens the page, and returns the token that it connects with."""
        status, text = self.ask("/?ranks=2&seq=1k")
        assert status == 200
        match = re.search(r'"token":\s*"([\w.=-]+)"', text)
        assert match
        return match[1]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    command = [sys.executable, "-m", "ringloom", "explore", "--port", "0", "--json"]
    with begun(command) as program:
        assert program.process.stdout
        assert program.process.stderr
        url = json.loads(program.process.stdout.readline())["url"]
        yield Server(int(url.split(":")[2].strip("/")))
        program.send(signal.SIGINT)
        said = program.process.stderr.read()
    assert "Traceback" not in said, said


def test_the_page_connects_to_its_own_server_only(server: Server) -> None:
    token = server.token()
    assert server.connect(token) == 101
    assert server.connect(token, Origin=f"http://localhost:{server.port}") == 101
    for origin in (EVIL, "null", f"http://127.0.0.1:{server.port + 1}", f"https://{server.host}"):
        assert server.connect(token, Origin=origin) == 403
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1", ""):
        assert server.connect(token, Host=host) == 403


@pytest.mark.parametrize("path", ["/", "/ws", "/autoload.js", "/static/js/bokeh.min.js"])
def test_other_names_and_other_pages_get_nothing(path: str, server: Server) -> None:
    for headers in (
        {"Host": f"evil.example:{server.port}"},
        {"Host": f"127.0.0.1.evil.example:{server.port}"},
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "script"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "iframe"},
    ):
        status, text = server.ask(path, **headers)
        assert (status, "token" in text, "Access-Control" in text) == (403, False, False)


def test_a_link_opens_the_page_and_nothing_else_makes_a_session(server: Server) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}
    assert server.ask("/?ranks=2&seq=1k", **link)[0] == 200
    assert server.ask("/static/js/bokeh.min.js", Sec_Fetch_Site="same-origin")[0] == 200
    for path in ("/autoload.js?bokeh-autoload-element=1", "/metadata", "/?bokeh-session-id=1"):
        status, text = server.ask(path)
        assert (status, "Access-Control" in text) == (404, False)
    assert server.ask("/?bokeh-token=x")[0] == server.ask("/", Bokeh_Session_Id="x")[0] == 404


def packed(**payload: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(payload).encode()).decode().rstrip("=")


def test_bad_tokens_are_refused_without_a_traceback(server: Server) -> None:
    """The fixture looks at the server's stderr when it ends."""
    late = int(time.time()) + 100
    for token in ("", "x", "%", "é".encode().decode("latin-1"), packed(), packed(session_id="1"),
                  packed(session_id="1", session_expiry=late), packed(session_id=3)):  # fmt: skip
        assert server.connect(token) == 403
    assert server.connect("x", **{"Sec-WebSocket-Protocol": "other"}) == 403


def asked(path: str, token: str = "") -> Any:
    headers = {"Host": "127.0.0.1:5006", "Sec-WebSocket-Protocol": f"bokeh, {token}"}
    return SimpleNamespace(path=path, headers=headers, arguments={})


def test_sessions_are_counted_and_tokens_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = list[SimpleNamespace]()
    door = Gate(SimpleNamespace(port=5006, get_sessions=lambda: sessions))
    for number in range(MOST_SESSIONS):
        assert door.refusal(asked("/")) is None
        sessions.append(SimpleNamespace(id=str(number)))
    assert (door.refusal(asked("/")) or [0])[0] == 503
    token = packed(session_id="3", session_expiry=1000)
    monkeypatch.setattr(gate, "time", lambda: 999.0)
    assert door.refusal(asked("/ws", token)) is None
    assert door.refusal(asked("/ws", packed(session_id="99", session_expiry=1000)))
    monkeypatch.setattr(gate, "time", lambda: 1000.0)
    assert door.refusal(asked("/ws", token))
