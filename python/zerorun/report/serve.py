"""A page that follows its runs, for browsers of this machine."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from zerorun import _C

_ADDRESS = "127.0.0.1"


class PageServer:
    """Serves `page()` and `data()` on the loopback address to who knows the token in `url`.

    `port` 0: a free one. IoError for a port that is taken.
    """

    def __init__(
        self, page: Callable[[], str], data: Callable[[], dict[str, Any]], port: int = 0
    ) -> None:
        self._page, self._data = page, data
        self._token = secrets.token_urlsafe(24)
        try:
            self._server = ThreadingHTTPServer((_ADDRESS, port), self._handler())
        except (OSError, OverflowError) as error:
            raise _C.IoError(
                f"cannot serve on {_ADDRESS}:{port}: {error}; give another --port, or "
                "none for a free one"
            ) from error
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"http://{_ADDRESS}:{self.port}/?token={self._token}"

    def run(self) -> None:
        """Serves until :meth:`close`, or an exception as KeyboardInterrupt."""
        try:
            self._server.serve_forever(poll_interval=0.2)
        finally:
            self._server.server_close()

    def close(self) -> None:
        self._server.shutdown()

    def answer(self, path: str, host: str | None) -> tuple[int, str, str]:
        """(status, type, text). `host`: the request's, which a page of another site that points its
        name here cannot forge."""
        parts = urlsplit(path)
        token = parse_qs(parts.query).get("token", [""])[0]
        if host not in {f"{_ADDRESS}:{self.port}", f"localhost:{self.port}"}:
            return 403, "text/plain", "this server answers to the loopback address only\n"
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return 403, "text/plain", "the address needs the token that the command printed\n"
        if parts.path == "/":
            return 200, "text/html", self._page()
        if parts.path == "/data.json":
            return 200, "application/json", json.dumps(self._data(), allow_nan=False)
        return 404, "text/plain", "there is / and /data.json\n"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    status, kind, text = owner.answer(self.path, self.headers.get("Host"))
                except (_C.Error, OSError) as error:  # the run's files may be gone
                    status, kind, text = 503, "text/plain", f"{error}\n"
                try:
                    self._send(status, kind, text.encode())
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the browser went away

            def _send(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("Referrer-Policy", "no-referrer")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Requests are not logged."""

        return Handler
