"""The server of a run's page: this machine only, GET only, few connections, and an end that waits for no browser."""

import contextlib
import http.client
import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from builders import new_model, new_run

from minigpt.errors import ConfigError
from minigpt.reports import live_run, live_server
from minigpt.reports.live_run import LiveRun
from minigpt.reports.live_server import LiveServer
from minigpt.reports.run_report import run_data
from minigpt.storage.run import Run
from minigpt.tokenizer.tokenizer import Tokenizer

HOSTILE = "</script><script>alert(1)</script>"


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "_SECONDS", 0.0)
    monkeypatch.setattr(live_server, "_SECONDS", 0.01)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return new_run(tmp_path / "fox", new_model(n_layer=1))


@pytest.fixture
def server(run: Run) -> Iterator[LiveServer]:
    server = LiveServer(free_port())
    server.start(LiveRun(run, Tokenizer.named("bytes")))
    yield server
    server.close()
    assert server.failure is None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read(server: LiveServer, path: str = "", **options: Any) -> tuple[int, str]:
    try:
        with urlopen(Request(server.address + path, **options), timeout=20) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def next_event(stream: Any) -> dict[str, Any]:
    """The next event of a stream, as its id and its data."""
    event: dict[str, Any] = {}
    while line := stream.readline().decode().strip():
        name, _, value = line.partition(": ")
        event[name] = json.loads(value) if name == "data" else value
    return event or next_event(stream)  # an empty one only keeps the connection


def test_the_page_is_the_report_and_may_connect_to_its_server_only(server: LiveServer, run: Run) -> None:
    run.log({"step": 1, "loss": 2.0, "prompt": HOSTILE})
    status, page = read(server)
    assert status == 200
    assert data_of(page)["runs"][0]["training"]["step"] == [1]
    assert "<title>fox</title>" in page
    assert "<script>alert" not in page
    assert re.search(r"default-src &#x27;none&#x27;;.*connect-src &#x27;self&#x27;", page)


def test_the_stream_sends_what_changes_and_ends_with_the_report(server: LiveServer, run: Run) -> None:
    live = data_of(read(server)[1])["live"]
    with urlopen(server.address.rstrip("/") + live["events"], timeout=20) as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        run.log({"step": 1, "prompt": "", "sample": HOSTILE})
        event = next_event(stream)
        assert event["data"]["run"] == live["run"]
        assert event["data"]["parts"]["samples"][0]["text"] == HOSTILE
        assert "tables" not in event["data"]["parts"]  # which the page has
        assert server.run is not None
        server.run.finish(run_data(run.directory))
        event = next_event(stream)
        while not event["data"]["isFinal"]:
            event = next_event(stream)
        assert event["data"]["parts"]["state"].startswith("not finished")
        assert stream.read() == b""
    assert data_of(read(server)[1])["live"] is None


def test_a_stream_that_is_opened_again_continues_and_another_runs_page_gets_everything(server: LiveServer) -> None:
    live = data_of(read(server)[1])["live"]
    assert server.run is not None
    server.run.notice("one")

    def parts(**headers: str) -> set[str]:
        with urlopen(Request(server.address + "events", headers=headers), timeout=20) as stream:
            return set(next_event(stream)["data"]["parts"])

    revision = live["events"].rpartition("-")[2]
    assert parts(**{"Last-Event-ID": f"{live['run']}-{revision}"}) == {"live"}
    for other in (f"0123456789abcdef-{revision}", revision, f"{live['run']}-9²", "-", f"{live['run']}-{'9' * 5000}"):
        if other.isascii():
            assert "tables" in parts(**{"Last-Event-ID": other}), other


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "[::1]:80"])
def test_a_request_for_another_host_is_refused(server: LiveServer, host: str) -> None:
    for path in ("", "events"):
        status, text = read(server, path, headers={"Host": host})
        assert status == 403
        assert "only for this machine" in text


def test_a_forwarded_port_is_answered(server: LiveServer) -> None:
    assert read(server, headers={"Host": "localhost:9000"})[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_only_get_is_answered(server: LiveServer, method: str) -> None:
    assert read(server, method=method)[0] == 405


@pytest.mark.parametrize("path", ["favicon.ico", "..%2f..%2fetc/passwd", "../etc/passwd", "training.json"])
def test_there_are_no_other_pages(server: LiveServer, path: str) -> None:
    status, text = read(server, path)
    assert status == 404
    assert "root:" not in text


def test_pages_may_not_be_framed_cached_or_read_by_other_sites(server: LiveServer) -> None:
    with urlopen(server.address, timeout=20) as answer:
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert "Python" not in answer.headers["Server"]


def test_a_port_that_is_taken_is_an_error_if_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"watch_port \({taken}\) is used by another program"):
            LiveServer(taken)
        monkeypatch.setattr(live_server, "WATCH_PORT", taken)
        server = LiveServer()
        assert server.address != f"http://127.0.0.1:{taken}/"
        server.close()


def test_the_server_listens_on_the_loopback_address_only(server: LiveServer) -> None:
    assert server._http.socket.getsockname()[0] == "127.0.0.1"


def test_too_many_connections_are_closed_and_the_others_still_work(server: LiveServer) -> None:
    host, port = server._http.server_address[:2]
    streams = []
    for _ in range(live_server._MOST_CONNECTIONS):
        connection = http.client.HTTPConnection(str(host), int(port), timeout=20)
        connection.request("GET", "/events")
        streams.append((connection, connection.getresponse()))
    with pytest.raises((OSError, http.client.HTTPException)):
        read(server)
    connection, stream = streams.pop()
    next_event(stream)
    stream.close()
    connection.close()
    assert server.run is not None
    status = None
    for number in itertools.count():
        server.run.notice(f"event {number}")  # the server finds out when it writes an event or two
        try:
            status = read(server)[0]
        except (OSError, http.client.HTTPException):
            time.sleep(0.02)
        if status == 200:
            break
    next_event(streams[0][1])
    for connection, stream in streams:
        stream.close()
        connection.close()


def test_the_end_does_not_wait_for_a_browser_that_reads_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_server, "_CLOSING_SECONDS", 0.05)
    server = LiveServer(free_port())
    server.start(LiveRun(run, Tokenizer.named("bytes")))
    with socket.create_connection(server._http.server_address[:2]) as silent:  # sends no request
        connection = http.client.HTTPConnection(*map(str, server._http.server_address[:2]), timeout=20)
        connection.request("GET", "/events")
        server.close()
        assert server._thread is not None
        assert not server._thread.is_alive()
        connection.close()
        del silent
    assert server.failure is None


def test_a_page_sent_just_before_the_end_still_receives_it(run: Run) -> None:
    server = LiveServer(free_port())
    server.start(LiveRun(run, Tokenizer.named("bytes")))
    live = data_of(read(server)[1])["live"]
    assert server.run is not None
    server.run.finish(run_data(run.directory))
    closing = threading.Thread(target=server.close)
    closing.start()
    closing.join(0.3)  # the time that the browser takes to run the page's scripts
    with urlopen(server.address.rstrip("/") + live["events"], timeout=20) as stream:
        assert next_event(stream)["data"]["isFinal"]
    closing.join(20)
    assert not closing.is_alive()
    assert server.failure is None


def test_an_error_in_the_page_is_kept_for_the_user(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    server = LiveServer(free_port())
    live = LiveRun(run, Tokenizer.named("bytes"))
    server.start(live)
    monkeypatch.setattr(live, "changes", lambda *_: 1 / 0)
    with pytest.raises((OSError, http.client.HTTPException)):
        read(server)
    server.close()
    assert isinstance(server.failure, ZeroDivisionError)


def test_the_threads_end_with_the_server(server: LiveServer) -> None:
    read(server)
    server.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "live page" and thread is server._thread]


def test_a_second_run_takes_the_place_of_the_first_and_open_pages_learn_it(server: LiveServer, tmp_path: Path) -> None:
    live = data_of(read(server)[1])["live"]
    with urlopen(server.address.rstrip("/") + live["events"], timeout=20) as stream:
        server.start(LiveRun(new_run(tmp_path / "vixen", new_model(n_layer=1)), Tokenizer.named("bytes")))
        while stream.readline():  # the stream of the first run ends
            pass
    with urlopen(server.address.rstrip("/") + live["events"], timeout=20) as stream:  # as a browser connects again
        event = next_event(stream)
    assert event["data"]["run"] != live["run"]  # so that the page loads itself again
    assert event["data"]["parts"]["name"] == "vixen"
    assert "<title>vixen</title>" in read(server)[1]


def test_a_connection_opened_in_advance_gets_no_page_of_a_run_that_has_ended(server: LiveServer) -> None:
    address = server._http.server_address[:2]
    with socket.create_connection(address, timeout=20) as early:
        read(server)  # the connections are accepted in their order
        server.close()
        with contextlib.suppress(OSError):
            early.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert early.recv(1000) == b""
