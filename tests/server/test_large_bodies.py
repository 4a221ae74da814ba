"""Large requests are refused early and large answers written beside the event loop, so that others are answered."""

import json
import re
import threading
from typing import Any

import pytest
from pydantic import ValidationError
from served import new_client, served_model
from starlette.testclient import TestClient

from minigpt.chat_logs.transcript import CHAT_TEMPLATE
from minigpt.server import completions
from minigpt.server.api_error import ApiError
from minigpt.server.completion_options import new_completion
from minigpt.server.request_bodies import CompletionBody
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import ServedModel


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_large_answer_is_written_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    body = {"seed": 1, "max_tokens": 10, "n": 2}
    if path == "/v1/completions":
        body |= {"prompt": "ab", "echo": True, "logprobs": 3}
    else:
        body |= {"messages": [{"role": "user", "content": "a"}]}
    threads, answers = [], []
    to_dict = completions.Completion.to_dict

    def recorded(completion: completions.Completion) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return to_dict(completion)

    monkeypatch.setattr(completions.Completion, "to_dict", recorded)
    with new_client("tiny", chat_template=CHAT_TEMPLATE) as client:
        for limit in (1_000_000, 1):
            monkeypatch.setattr(completions, "_LARGE_ANSWER", limit)
            answers.append(client.post(path, json=body))
    small, large = threads
    assert not small.startswith("asyncio_")
    assert large.startswith("asyncio_")
    assert answers[0].json()["choices"] == answers[1].json()["choices"]
    assert answers[0].headers["content-type"] == answers[1].headers["content-type"]


@pytest.mark.parametrize(
    ("changes", "listed"),
    [({}, 20), ({"logprobs": 4}, 100), ({"logprobs": 4, "echo": True}, 130), ({"n": 1, "best_of": 2}, 20)],
    ids=str,
)
def test_the_size_of_an_answer_counts_echoes_and_alternatives(changes: dict[str, Any], listed: int) -> None:
    body = {"prompt": "abc", "max_tokens": 10, "n": 2, **changes}
    completion = new_completion(CompletionBody(**body), served_model("tiny"), ServeConfig())
    for choices in completion.choices.values():
        for choice in choices:
            choice.n_tokens = 10
    assert completion.n_listed == listed


@pytest.mark.parametrize("wrong", [-1, 2**40, True, "a"])
def test_the_first_of_many_wrong_ids_is_named(wrong: object) -> None:
    with pytest.raises(ApiError, match=re.escape("prompt[500] (")) as caught:
        CompletionBody.parse(json.dumps({"prompt": [1] * 500 + [wrong] * 500}).encode())
    found = caught.value.__cause__
    assert isinstance(found, ValidationError)
    assert found.error_count() == 1  # of a million, each would take a microsecond


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[1]] * 129, "prompt has 129 prompts; send at most 128"),
        ([[1]] * 10_001, "must have at most 10000 items, not"),
    ],
    ids=["many", "too many"],
)
def test_too_many_prompts_are_refused_before_they_are_read(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, prompts: list[object], message: str
) -> None:
    for name in ("encode", "check_ids"):
        monkeypatch.setattr(ServedModel, name, None)
    response = client.post("/v1/completions", json={"prompt": prompts})
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
