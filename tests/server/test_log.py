"""The server's log: a line for every request that generates or fails, and no text of a client in it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from served import new_models
from starlette.testclient import TestClient

from minigpt.server.api_error import ApiError
from minigpt.server.application import build_application
from minigpt.server.serve_config import ServeConfig
from minigpt.tokenizer.tokenizer import Tokenizer


@contextmanager
def logging_client(**config: Any) -> Iterator[tuple[TestClient, list[str]]]:
    models, lines = new_models("a"), list[str]()
    models.load()
    application = build_application(models, ServeConfig(**config), lines.append)
    with TestClient(application, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client, lines


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/completions", {"temperature": -1}, "/v1/completions 400: temperature (-1) must "),
        ("/v1/completions", {"promt": "a secret"}, "/v1/completions 400: unknown field 'promt'; did you mean prompt?"),
        ("/v1/completions", {"prompt": {"a": "secret"}}, "/v1/completions 400: prompt is not valid; --log-prompts"),
        ("/v1/completions", {"prompt": "", "stop": [["secret"]]}, "/v1/completions 400: stop[0] is not valid; --log"),
        (
            "/v1/completions",
            '{"prompt": "secret',
            "/v1/completions 400: the body is not valid; --log-prompts",
        ),
        ("/v1/completions", {"model": "b", "prompt": ""}, "/v1/completions 404: "),
        ("/v1/chat/completions", {"messages": [{"role": "secret", "content": "x"}]}, "/v1/chat/completions 400: messa"),
        ("/tokenize", {}, "/tokenize 400: prompt is not valid; --log-prompts shows why"),
        ("/nothing\n/here", {}, "/nothing\n/here 404: there is nothing at this path"),
    ],
)
def test_a_failed_request_is_a_line_that_quotes_no_text(path: str, body: Any, expected: str) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    with logging_client() as (client, lines):
        answer = client.post(path.replace("\n", "%0A"), content=content)
        assert answer.status_code >= 400
        assert len(lines) == 1
        assert lines[0].startswith(expected)
        assert "secret" not in lines[0]


def test_with_log_prompts_the_line_has_the_whole_sentence() -> None:
    with logging_client(log_prompts=True) as (client, lines):
        told = client.post("/v1/completions", json={"prompt": {"a": "secret"}}).json()["error"]["message"]
        assert "secret" in told
        assert lines == [f"/v1/completions 400: {told}"]


def test_refused_keys_and_hosts_are_logged_and_health_is_not() -> None:
    with logging_client(api_key="k") as (client, lines):
        assert client.get("/v1/models").status_code == 401
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
        assert client.get("/health").status_code == 200
    assert [line.split(":")[0] for line in lines] == ["/v1/models 401", "/ 403"]
    models, lines = new_models("a"), []
    with TestClient(build_application(models, ServeConfig(), lines.append), base_url="http://localhost") as client:
        assert client.get("/health").status_code == 503  # the models are not loaded
        assert lines == []
        assert client.get("/v1/models").status_code == 503
        assert len(lines) == 1


def test_a_bug_is_logged_without_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[int]:
        raise RuntimeError("cause")

    with logging_client() as (client, lines):
        monkeypatch.setattr(Tokenizer, "encode", broken)
        assert client.post("/tokenize", json={"prompt": "a"}).status_code == 500
    assert lines == ["/tokenize 500: the server failed; its terminal shows the cause"]


def test_an_error_in_a_stream_is_logged_with_what_was_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*_: object) -> Any:
        yield {"a": 1}
        raise ApiError(503, "the server is ending")

    monkeypatch.setattr("minigpt.server.application.stream", failing)
    with logging_client() as (client, lines):
        answer = client.post("/v1/completions", json={"prompt": "abc", "stream": True})
        assert answer.status_code == 200
        assert "the server is ending" in answer.text
    assert lines == ["/v1/completions 3 + 0 tokens, then 503: the server is ending"]


def test_a_request_that_generates_has_one_line() -> None:
    with logging_client() as (client, lines):
        assert client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 2}).status_code == 200
    assert lines == ["/v1/completions 3 + 2 tokens"]
