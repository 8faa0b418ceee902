"""Accepts only requests of the server's own page.

Other sites can reach this machine through the reader's browser: by a host name that resolves to it
(which the Host header shows), or by requests from their pages (which the Origin or Sec-Fetch-Site
header shows). Only loading the page creates a session, and at most MOST_SESSIONS are open; a
connection needs the token of an open session.
"""

from time import time
from typing import Any

from bokeh.util.token import get_session_id, get_token_payload
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.routing import Router
from tornado.web import RequestHandler

MOST_SESSIONS = 32
PAGE, CONNECTION = "/", "/ws"
CLOSED = "/autoload.js", "/metadata"  # for embedding in other pages; these create sessions
SESSION_NAMES = "bokeh-token", "bokeh-session-id"  # parameters that select a session


class Refusing(RequestHandler):
    """Answers every request with a given status and reason."""

    def initialize(self, status: int, reason: str) -> None:
        """Sets the answer."""
        self.status, self.reason = status, reason

    def prepare(self) -> None:
        """Answers before the request is processed."""
        self.set_status(self.status)
        self.set_header("Content-Type", "text/plain")
        self.finish(f"{self.reason}\n")


class Gate(Router):
    """Routes allowed requests to a Bokeh server, and refuses all others."""

    def __init__(self, server: Any) -> None:
        self.server = server
        port = f":{server.port}"
        self.hosts = {f"{name}{port}" for name in ("127.0.0.1", "localhost")}
        self.origins = {f"http://{host}" for host in self.hosts}

    def find_handler(self, request: HTTPServerRequest, **args: Any) -> HTTPMessageDelegate | None:
        """Returns the handler of a request."""
        application = self.server._tornado
        if (refusal := self.refusal(request)) is not None:
            answer = dict(zip(("status", "reason"), refusal, strict=True))
            delegate: HTTPMessageDelegate = application.get_handler_delegate(
                request, Refusing, answer
            )
            return delegate
        handler: HTTPMessageDelegate | None = application.find_handler(request, **args)
        return handler

    def refusal(self, request: HTTPServerRequest) -> tuple[int, str] | None:
        """Returns the status and reason of a refusal, or None for an allowed request."""
        headers, arguments = request.headers, request.arguments
        origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
        is_page_load = headers.get("Sec-Fetch-Dest") == "document"  # for example through a link
        names_session = any(name in arguments for name in SESSION_NAMES)
        names_session = names_session or "Bokeh-Session-Id" in headers
        sessions = {session.id for session in self.server.get_sessions()}
        if headers.get("Host", "").lower() not in self.hosts:
            return 403, "this server only answers requests to its own address"
        if origin is not None and origin.lower() not in self.origins:
            return 403, "this server only answers requests of its own page"
        if site in ("cross-site", "same-site") and not is_page_load:
            return 403, "this server only answers requests of its own page"
        if request.path in CLOSED or names_session:
            return 404, "only loading the page creates a session"
        if request.path == PAGE and len(sessions) >= MOST_SESSIONS:
            return 503, f"{MOST_SESSIONS} pages are open: close some and wait half a minute"
        if request.path == CONNECTION and session_of(request) not in sessions:
            return 403, "the session of this page has ended: load the page again"
        return None


def session_of(request: HTTPServerRequest) -> str:
    """Returns the session named by the token of a connection, "" without a valid token."""
    parts = request.headers.get("Sec-WebSocket-Protocol", "").split(",")
    if len(parts) != 2 or parts[0].strip() != "bokeh":
        return ""
    token = parts[1].strip()
    try:
        expired = time() >= float(get_token_payload(token)["session_expiry"])
        return "" if expired else str(get_session_id(token))
    except Exception:  # Bokeh raises many types of errors for invalid tokens
        return ""


def guard(server: Any) -> None:
    """Restricts a server to its own page; must be called before the server starts."""
    server._http.request_callback = Gate(server)
