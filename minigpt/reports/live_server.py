"""Serves a run's report page to browsers on this machine while the run trains; the page follows the run by itself.

The server listens on the loopback address only. It answers GET requests whose Host header names this machine, because
a page of another site could otherwise read it through a name that it points here (DNS rebinding). A page opens one
stream of server-sent events, on which it gets the parts of its data that have changed.
"""

import contextlib
import errno
import json
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from minigpt.errors import ConfigError
from minigpt.reports import WATCH_PORT
from minigpt.reports.live_run import Changes, LiveRun
from minigpt.reports.page import page
from minigpt.reports.run_report import KIND, SCRIPTS

EVENTS = "/events"
_ADDRESS = "127.0.0.1"
_HOSTS = {_ADDRESS, "localhost"}
_MOST_CONNECTIONS = 16
_SECONDS = 1.0  # between two events of a stream
_QUIET_SECONDS = 15.0  # after which an empty event finds out whether the browser is still there
_TIMEOUT = 5.0  # seconds that a browser may take to send its request, or to take an event
_CLOSING_SECONDS = 2.0  # for the last event to reach the pages that are open
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LiveServer:
    """Serves the page of a run, in threads that end with the process. `failure` is an error that is a bug."""

    def __init__(self, port: int | None = None) -> None:
        """Takes a port of the loopback address: the given one, or else the default one, or a free one.

        Raises: ConfigError if the given port is taken or not allowed.
        """
        self._http = _open(port)
        self._http.owner = self
        self._thread: threading.Thread | None = None
        self.run: LiveRun | None = None
        self.streams: set[int] = set()  # the threads of the open streams of events
        self.stream_expected_until = 0.0  # by the page sent last, in seconds of the monotonic clock
        self.is_closed = False
        self.failure: Exception | None = None

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{_ADDRESS}:{self._http.server_address[1]}/"

    def start(self, run: LiveRun) -> None:
        """Begins to answer. Called again, it serves another run; pages that are open see that and load it."""
        self.run = run
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.2,), name="live page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops answering, after the pages that are open have received the last event, at most two seconds later.

        A page that was sent just before the end opens its stream only now, so one is waited for as well.
        """
        until = time.monotonic() + _CLOSING_SECONDS
        while self.run is not None and self.run.wait(0) and time.monotonic() < until:
            if not self.streams and time.monotonic() > self.stream_expected_until:
                break
            time.sleep(0.02)
        self.is_closed = True  # for streams of a run that has not ended
        if self._thread is not None:
            self._http.shutdown()
        self._http.server_close()


class _Server(TCPServer):
    """Answers each connection in its own thread, and closes those that are too many."""

    daemon_threads = True
    allow_reuse_address = os.name != "nt"  # there, two runs could share a port
    request_queue_size = _MOST_CONNECTIONS
    owner: LiveServer

    def __init__(self, port: int) -> None:
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self.idle: set[socket.socket] = set()  # connections that have not asked for a page yet
        super().__init__((_ADDRESS, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self.idle.add(request)
        threading.Thread(target=self._answer, args=(request, client_address), name="live page", daemon=True).start()

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:  # the browser has closed the connection, or takes too long
            pass
        except Exception as error:  # reported by the training thread
            self.owner.failure = self.owner.failure or error
        finally:
            self.idle.discard(request)
            self.shutdown_request(request)
            self._free.release()

    def server_close(self) -> None:
        """Closes the address, and connections that a browser has opened in advance for its next request.

        Otherwise that request would get the page of this run after another run has begun at the address.
        """
        super().server_close()
        for connection in list(self.idle):
            with contextlib.suppress(OSError):  # the browser has closed it
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    timeout = _TIMEOUT
    server_version, sys_version = "minigpt", ""
    server: _Server

    def do_GET(self) -> None:
        self.server.idle.discard(self.connection)
        name = self.headers.get("Host", "").rsplit(":", 1)[0]
        run = self.server.owner.run
        if name not in _HOSTS:
            self._refuse(403, "This page is only for this machine: open it as localhost or 127.0.0.1.")
        elif run is None or urlsplit(self.path).path not in ("/", EVENTS):
            self._refuse(404, "There is no such page; the page of the run is at /.")
        elif urlsplit(self.path).path == "/":
            if not run.wait(0):
                self.server.owner.stream_expected_until = time.monotonic() + _CLOSING_SECONDS
            self._send(live_page(run).encode(), "text/html; charset=utf-8")
        else:
            self._stream(run)

    def _only_get(self) -> None:
        self._refuse(405, "Only GET is answered here.")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _only_get  # noqa: N815

    def _stream(self, run: LiveRun) -> None:
        """Sends what has changed as server-sent events until the run has ended or the browser goes away."""
        self._begin(200, "text/event-stream")
        streams = self.server.owner.streams
        streams.add(threading.get_ident())
        self.server.owner.stream_expected_until = 0.0
        try:
            revision, sent_at = self._known_revision(run), time.monotonic()
            while not self.server.owner.is_closed and self.server.owner.run is run:
                changes = run.changes(revision)
                if changes.parts or changes.is_final:
                    self.wfile.write(_event(run, changes))
                    revision, sent_at = changes.revision, time.monotonic()
                elif time.monotonic() - sent_at > _QUIET_SECONDS:
                    self.wfile.write(b":\n\n")
                    sent_at = time.monotonic()
                if changes.is_final:
                    return
                run.wait(_SECONDS)
        finally:
            streams.discard(threading.get_ident())

    def _known_revision(self, run: LiveRun) -> int:
        """The revision that the page has: that of its last event, or the one that it was made with; -1 if none."""
        asked = parse_qs(urlsplit(self.path).query).get("since", [""])[0]
        identity, _, revision = self.headers.get("Last-Event-ID", asked).partition("-")
        is_known = identity == run.identity and revision.isdecimal() and len(revision) < 10
        return int(revision) if is_known else -1

    def _send(self, content: bytes, kind: str, status: int = 200) -> None:
        self._begin(status, kind, len(content))
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, status: int, reason: str) -> None:
        self._send(reason.encode(), "text/plain; charset=utf-8", status)

    def _begin(self, status: int, kind: str, length: int | None = None) -> None:
        self.send_response(status)
        headers = _HEADERS | {"Content-Type": kind} | ({} if length is None else {"Content-Length": str(length)})
        for name, value in (headers | ({"Allow": "GET"} if status == 405 else {})).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Writes nothing: the terminal shows the run."""


def live_page(run: LiveRun) -> str:
    """The report page of a run that is training, which opens a stream of events for what changes later."""
    changes = run.changes()
    live = {"events": f"{EVENTS}?since={run.identity}-{changes.revision}", "run": run.identity}
    data = {"runs": [changes.parts], "live": None if changes.is_final else live}
    return page(str(changes.parts["name"]), [*SCRIPTS, "live"], data, KIND, connects=True)


def _event(run: LiveRun, changes: Changes) -> bytes:
    data = {"run": run.identity, "parts": changes.parts, "isFinal": changes.is_final}
    return f"id: {run.identity}-{changes.revision}\ndata: {json.dumps(data, allow_nan=False)}\n\n".encode()


def _open(port: int | None) -> _Server:
    try:
        return _Server(WATCH_PORT if port is None else port)
    except OSError as error:
        if port is not None:
            reason = "is used by another program" if error.errno == errno.EADDRINUSE else f"cannot be used ({error})"
            raise ConfigError(f"watch_port ({port}) {reason}; give another one, or omit it for a free one") from error
        return _Server(0)
