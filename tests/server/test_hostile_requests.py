"""Hostile requests get a 4xx in one sentence or a closed connection, and the server goes on."""

import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from served import SocketServer, new_client, new_models, post, read_all
from starlette.testclient import TestClient

from minigpt.chat_logs.transcript import CHAT_TEMPLATE
from minigpt.errors import ConfigError
from minigpt.server import answering
from minigpt.server.serve_config import ServeConfig

BODY = {"prompt": "a", "max_tokens": 2}


def started(config: ServeConfig | None = None, **limits: Any) -> SocketServer:
    models = new_models("tiny", chat_template=CHAT_TEMPLATE)
    models.load()
    return SocketServer(models, config or ServeConfig(), **limits)


@pytest.fixture(scope="module")
def server() -> Iterator[SocketServer]:
    with started() as server:
        yield server


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Host, Origin and key


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:1234", 200),
        ("[::1]:8000", 200),
        ("my.lan", 200),
        ("mybox.lan:8000", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:8000", 403),
        ("localhost:1:1", 403),
        ("localhost:80a", 403),
        ("localhost@evil.example", 403),
        ("evil.example@localhost", 403),
        ("localhost/", 403),
        ("[::1", 403),
        ("[::1]evil.example", 403),
        ("[evil.example]", 403),
        ("10.1.2.3", 403),
        ("", 403),
    ],
)
def test_only_names_of_this_server_are_answered(host: str, expected: int) -> None:
    with new_client("tiny", config=ServeConfig(host="MyBox.lan", api_key="k", allowed_hosts=("My.lan",))) as client:
        response = client.get("/v1/models", headers={"Host": host, "Authorization": "Bearer k"})
    assert response.status_code == expected
    if expected == 403:
        assert "Host" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.1.2.3:8000", 200),
        ("[fd00::1]:8000", 200),
        ("[FD00:0::1]", 200),
        ("localhost", 200),
        ("evil.com:1:1", 403),
        ("evil.com", 403),
        ("1.2.3", 403),
        ("1234", 403),
        ("::evil", 403),
        ("[1.2.3.4]", 403),
    ],
)
@pytest.mark.parametrize("listening", ["0.0.0.0", "::"])
def test_a_server_on_every_address_is_named_by_addresses_only(listening: str, host: str, expected: int) -> None:
    with new_client("tiny", config=ServeConfig(host=listening, api_key="k")) as client:
        assert client.get("/health", headers={"Host": host}).status_code == expected


@pytest.mark.parametrize(
    ("given", "sent"),
    [("My.lan:8000", "my.lan:8000"), ("my.lan.", "my.lan"), ("fd00::1", "[fd00::1]:80"), ("[fd00::1]", "[fd00::1]")],
)
def test_a_host_is_allowed_however_it_is_written(given: str, sent: str) -> None:
    with new_client("tiny", config=ServeConfig(allowed_hosts=(given,))) as client:
        assert client.get("/v1/models", headers={"Host": sent}).status_code == 200


@pytest.mark.parametrize("given", ["", "http://my.lan", "my.lan/"])
def test_an_allowed_host_is_a_name_alone(given: str) -> None:
    with pytest.raises(ConfigError, match=r"allowed_hosts \('.*'\) must be a host name alone, such as my-server.lan"):
        ServeConfig(allowed_hosts=(given,))


def test_web_pages_may_not_use_the_server_unless_allowed(client: TestClient) -> None:
    for origin, expected in (
        ("http://localhost", 200),
        ("https://localhost", 200),
        ("http://evil.example", 403),
        ("http://localhost:1", 403),
        ("http://localhost@evil.example", 403),
        ("http://evil.example@localhost", 403),
        ("ftp://localhost", 403),
        ("null", 403),
        ("http://[", 403),
    ):
        response = client.post("/v1/completions", json=BODY, headers={"Origin": origin})
        assert response.status_code == expected
        assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/report", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"}, 403),
        ("/report", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, 403),
        ("/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}, 403),
        ("/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, 200),
        ("/v1/models", {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost:3000"}, 200),
        ("/v1/models", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("/v1/models", {"Sec-Fetch-Site": "none"}, 200),
        ("/v1/models", {}, 200),
    ],
)
def test_what_another_site_makes_a_browser_ask_for_is_refused(
    path: str, headers: dict[str, str], expected: int
) -> None:
    with new_client("tiny", config=ServeConfig(cors=("http://localhost:3000",))) as client:
        response = client.get(path, headers=headers)
    assert response.status_code == expected
    if expected == 403:
        assert "web pages of another site may not use this server" in response.json()["error"]["message"]


def test_the_pages_of_an_allowed_origin_may_use_the_server() -> None:
    with new_client("tiny", config=ServeConfig(cors=("http://localhost:3000",))) as client:
        page = {"Origin": "http://localhost:3000"}
        response = client.post("/v1/completions", json=BODY, headers=page)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "http://localhost:3000"
        names = "authorization,content-type,x-stainless-lang"  # of OpenAI's client for JavaScript
        asked = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": names}
        assert client.options("/v1/completions", headers=asked).status_code == 200
        assert client.post("/v1/completions", json=BODY, headers={"Origin": "http://evil.example"}).status_code == 403
        evil = {**asked, "Origin": "http://evil.example"}
        assert client.options("/v1/completions", headers=evil).status_code == 400
        for headers in ({"Origin": "http://evil.example"}, evil):
            response = client.get("/v1/models", headers=headers)
            assert (response.status_code, response.headers.get("access-control-allow-origin")) == (403, None)


@pytest.mark.parametrize(("headers", "expected"), [({}, 401), ({"Host": "evil.example"}, 403)])
def test_an_allowed_page_can_read_why_it_is_refused(headers: dict[str, str], expected: int) -> None:
    with new_client("tiny", config=ServeConfig(cors=("http://localhost:3000",), api_key="secret")) as client:
        response = client.get("/v1/models", headers={"Origin": "http://localhost:3000", **headers})
    assert response.status_code == expected
    assert response.headers["access-control-allow-origin"] == "http://localhost:3000"


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("localhost:3000", "an origin such as http://localhost:3000"),
        ("http://", "an origin such as http://localhost:3000"),
        ("http://[", "an origin such as http://localhost:3000"),
        ("http://localhost:3000/", "as browsers send it: http://localhost:3000"),
        ("https://My.lan/page?a#b", "as browsers send it: https://my.lan"),
        ("http://my.lan:80", "as browsers send it: http://my.lan"),
        ("https://my.lan:443", "as browsers send it: https://my.lan"),
    ],
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"cors ({origin!r}) must be")) as caught:
        ServeConfig(cors=("*", origin))
    assert str(caught.value).removesuffix(", or *").endswith(expected)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, 401),
        ("Bearer secret", 200),
        ("bearer secret", 200),
        ("Bearer wrong", 401),
        ("Bearer", 401),
        ("Basic secret", 401),
        ("Bearer s\u00e9cret".encode("latin-1"), 401),
    ],
)
def test_a_key_must_be_right(header: str | None, expected: int) -> None:
    with new_client("tiny", config=ServeConfig(api_key="secret")) as client:
        response = client.get("/v1/models", headers={} if header is None else {"Authorization": header})
        assert response.status_code == expected
        assert client.get("/health").status_code == 200
    if expected == 401:
        assert response.json()["error"]["code"] == "invalid_api_key"


def test_beyond_this_machine_a_key_is_required() -> None:
    for host in ("0.0.0.0", "192.168.1.2", "::", "example.org"):
        with pytest.raises(ConfigError, match="needs a key"):
            ServeConfig(host=host)
        assert not ServeConfig(host=host, api_key="k").is_local
    assert all(ServeConfig(host=host).is_local for host in ("127.0.0.1", "::1", "Localhost", "127.3.2.1"))


@pytest.mark.parametrize("key", [" secret", "secret ", " ", "sécret", "a\nb"])
def test_a_key_that_no_client_can_send_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="api_key must"):
        ServeConfig(api_key=key)


# Bodies


def test_more_tokens_than_the_server_accepts_are_neither_encoded_nor_decoded() -> None:
    with new_client("tiny", config=ServeConfig(max_total_tokens=10)) as client:
        for path, name, few, many in (
            ("/tokenize", "prompt", "a" * 10, "a" * 11),
            ("/detokenize", "tokens", [1] * 10, [1] * 11),
        ):
            assert client.post(path, json={name: few}).status_code == 200
            response = client.post(path, json={name: many})
            assert (response.status_code, response.json()["error"]["param"]) == (400, name)
            assert "11 tokens in one request are more than the 10 that this" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "must be JSON: EOF"),
        (b"[]", "must be an object"),
        (b"null", "must be an object"),
        (b'{"prompt": "\xff"}', "must be JSON: invalid unicode"),
        (b"[" * 100_000, "must be JSON: recursion limit"),
        (b'{"temperature": NaN}', "must be a finite number"),
        (b'{"temperature": 1e999}', "must be a finite number"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", "must be JSON: number out of range"),
        (b'{"max_tokens": 1e300}', "must be a valid integer"),
        (b'{"prompt": "\\ud800"}', "must be JSON: unexpected end of hex escape"),
        (b'{"a\\u001b[31m": 1}', "unknown field"),
    ],
    ids=lambda value: value[:20].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_a_body_that_is_no_request_is_refused(client: TestClient, body: bytes, message: str) -> None:
    response = client.post("/v1/completions", content=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert "\x1b" not in response.json()["error"]["message"]
    assert "Traceback" not in response.text


def test_a_body_that_says_it_is_too_long_is_not_read(server: SocketServer) -> None:
    answer = server.ask(post("/v1/completions", b"", **{"Content-Length": "1000000000"}))
    assert status(answer) == 413
    assert b"at most 4,000,000 bytes" in answer


def test_a_body_that_becomes_too_long_is_cut_off(server: SocketServer) -> None:
    with contextlib.closing(server.connect()) as connection:
        head = post("/v1/completions", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        connection.sendall(head)
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        sent = 0
        with contextlib.suppress(OSError):  # the server closes the connection in between
            while sent < 1000:
                connection.sendall(chunk)
                sent += 1
        assert sent < 100
    assert status(server.ask(post("/v1/completions", json.dumps(BODY).encode()))) == 200


def test_a_slow_body_is_ended(server: SocketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "_BODY_SECONDS", 0.2)
    assert status(server.ask(post("/v1/completions", b'{"prompt"', **{"Content-Length": "50"}))) == 408


def test_what_is_no_http_is_refused(server: SocketServer) -> None:
    for raw in (b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"A" * 100_000):
        assert status(server.ask(raw)) == 400


# Connections


def test_connections_above_the_limit_are_closed_and_the_others_go_on() -> None:
    with started(ServeConfig(max_connections=20)) as server, contextlib.ExitStack() as stack:
        kept = [stack.enter_context(contextlib.closing(server.connect())) for _ in range(20)]
        for _ in range(30):
            with contextlib.closing(server.connect()) as connection, contextlib.suppress(ConnectionResetError):
                assert read_all(connection) == b""
        kept[0].sendall(post("/v1/completions", json.dumps(BODY).encode()))
        assert status(read_all(kept[0])) == 200


def test_a_connection_without_a_request_is_closed() -> None:
    with started(idle_seconds=0.2) as server:
        for begin in (b"", b"POST /v1/completions HTTP/1.1\r\nHost:"):
            with contextlib.closing(server.connect()) as connection, contextlib.suppress(ConnectionResetError):
                connection.sendall(begin)
                assert read_all(connection) == b""


def answered(server: SocketServer) -> socket.socket:
    """A connection that stays open after the answer to its first request."""
    connection = server.connect()
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(65536)
    assert status(answer) == 200
    return connection


def test_a_connection_with_a_part_of_a_further_request_is_closed() -> None:
    with started(idle_seconds=0.2) as server, contextlib.closing(answered(server)) as connection:
        connection.sendall(b"G")
        with contextlib.suppress(ConnectionResetError):
            assert read_all(connection) == b""


def test_further_bytes_of_a_request_do_not_extend_its_time() -> None:
    with started(idle_seconds=0.2) as server, contextlib.closing(answered(server)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 600:
                connection.sendall(b"a")
                sent += 1
                time.sleep(0.05)
        assert sent < 600


def test_the_body_of_a_further_request_may_take_longer() -> None:
    body = json.dumps(BODY).encode()
    with started(idle_seconds=0.2) as server, contextlib.closing(answered(server)) as connection:
        raw = post("/v1/completions", body)
        connection.sendall(raw[:4])
        connection.sendall(raw[4 : -len(body)])
        time.sleep(0.5)
        connection.sendall(body)
        assert status(read_all(connection)) == 200


MANY = ServeConfig(max_total_tokens=4_000_000)
LARGE_ANSWER = post("/tokenize", json.dumps({"prompt": "a" * 3_900_000}).encode())  # 12 MB


def test_a_client_that_never_reads_is_cut_off() -> None:
    with started(MANY, write_seconds=0.3) as server, contextlib.closing(server.connect()) as connection:
        wait_until(lambda: server.n_connections == 1)
        connection.sendall(LARGE_ANSWER)
        wait_until(lambda: server.n_connections == 0)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 20):
                answer += part
        assert not answer.endswith(b"}")


def test_a_client_that_reads_slowly_gets_all() -> None:
    with started(MANY, write_seconds=1.0) as server, contextlib.closing(server.connect()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection.sendall(LARGE_ANSWER)
        size = 0
        while part := connection.recv(1 << 17):
            size += len(part)
            time.sleep(0.02)
        assert size > 3 * 3_900_000


# The queue


CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}


@pytest.mark.parametrize("streams", [False, True], ids=["one answer", "stream"])
@pytest.mark.parametrize(("path", "body"), [("/v1/completions", BODY), ("/v1/chat/completions", CHAT)])
def test_a_full_queue_is_429_with_a_time_to_retry(path: str, body: dict[str, Any], streams: bool) -> None:
    raw = post(path, json.dumps({**body, "stream": streams}).encode())
    with started(ServeConfig(max_batch=2, max_queue=2)) as full, contextlib.ExitStack() as stack:
        endless = {"prompt": "a", "max_tokens": 200_000, "n": 4, "context": "slide", "logit_bias": {"256": -100}}
        endless["max_tokens"] = 60_000
        stack.enter_context(contextlib.closing(full.send("/v1/completions", endless)))
        wait_until(lambda: full.n_texts == 4)
        answer = full.ask(raw)
        assert status(answer) == 429
        assert b"retry-after: " in answer.lower()
        full.application.state.hub.refuse()
        assert status(full.ask(raw)) == 503


def test_a_request_that_takes_too_long_is_ended() -> None:
    with started(ServeConfig(timeout=0.3)) as server:
        endless = {"prompt": "a", "max_tokens": 200_000, "context": "slide", "logit_bias": {"256": -100}}
        assert status(server.ask(post("/v1/completions", json.dumps(endless).encode()))) == 504
        streamed = server.ask(post("/v1/completions", json.dumps({**endless, "stream": True}).encode()))
        assert b"took longer than 0.3 s" in streamed
        assert b"data: [DONE]" in streamed
        wait_until(lambda: server.n_texts == 0)


# Clients that leave


@pytest.mark.parametrize("streams", [False, True], ids=["one answer", "stream"])
def test_a_client_that_leaves_stops_costing(server: SocketServer, streams: bool) -> None:
    endless = {"prompt": "a", "max_tokens": 50_000, "n": 4, "context": "slide", "logit_bias": {"256": -100}}
    connection = server.send("/v1/completions", {**endless, "stream": streams})
    wait_until(lambda: server.n_texts == 4)
    connection.shutdown(socket.SHUT_RDWR)
    connection.close()
    wait_until(lambda: server.n_texts == 0)
    assert status(server.ask(post("/v1/completions", json.dumps(BODY).encode()))) == 200
