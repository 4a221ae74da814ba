"""The browser of these tests waits for the page that it opens, whatever the page before does meanwhile."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

DELAY = 0.3  # seconds


class Pages(BaseHTTPRequestHandler):
    """`/first` and `/second`, with an image each; those of the reloaded `/first` and of `/second` come late."""

    reloaded, left, released = threading.Event(), threading.Event(), threading.Event()
    loads = 0

    def do_GET(self) -> None:
        if self.path == "/first.png":
            Pages.loads += 1
            if Pages.loads > 1:
                self.reloaded.set()
                self.left.wait(10)
        elif self.path == "/second":
            self.left.set()  # the image of the first page arrives, and so its load event, while this one is asked for
            self.released.wait(DELAY)
        elif self.path == "/second.png":
            self.released.wait(DELAY)
        name = self.path.strip("/")
        content = b"" if "." in name else f"<title>{name}</title><img src={name}.png>".encode()
        self.send_response(200 if content else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Writes nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    for event in (Pages.left, Pages.released):
        event.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_load_event_of_a_page_that_loads_itself_again_is_not_that_of_the_next(browser: Any, address: str) -> None:
    browser.visit(f"{address}first")
    browser.ask("setTimeout(() => location.reload())")
    assert Pages.reloaded.wait(20)
    browser.visit(f"{address}second")
    assert browser.ask("[document.title, document.readyState]") == ["second", "complete"]
