"""What the playground shows of a model: the page itself, the ids of tokens, inspections and reports."""

import asyncio
import base64
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import finished_run, new_run, random_model
from served import CONTEXT, new_client
from starlette.testclient import TestClient

from minigpt.inspection.activations import inspect
from minigpt.server import model_views
from minigpt.server.api_error import ApiError
from minigpt.server.serve_config import ServeConfig
from minigpt.server.side_work import StoppedError, Turns, in_own_thread
from minigpt.tokenizer.tokenizer import Tokenizer

TOKENIZER = Tokenizer.named("bytes")
MODEL = random_model(n_positions=CONTEXT, n_embd=32, std=0.2)  # the first of the served models


def refusal(client: TestClient, path: str, **body: Any) -> tuple[int, str]:
    response = client.post(path, json=body)
    message: str = response.json()["error"]["message"]
    assert "\n" not in message
    return response.status_code, message


# The page


def test_the_page_tells_nothing_of_the_models_and_needs_no_key() -> None:
    with new_client("secret_name", config=ServeConfig(api_key="k")) as client:
        response = client.get("/")
        assert client.get("/v1/models").status_code == 401
    assert response.status_code == 200
    assert "secret_name" not in response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert policy.endswith("connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
    assert response.headers["x-content-type-options"] == "nosniff"


# The ids of tokens


def test_the_ids_of_tokens_continue_a_text_exactly(client: TestClient) -> None:
    body = {"prompt": "añ", "max_tokens": 9, "seed": 3, "logprobs": 4, "return_token_ids": True}
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert choice["prompt_token_ids"] == [97, 195, 177]
    assert TOKENIZER.decode(choice["token_ids"]).rstrip("\ufffd") == choice["text"]  # it ends within a character
    content = choice["logprobs"]["content"]
    assert [token["id"] for token in content] == choice["token_ids"]
    assert [token["bytes"] for token in content] == [list(TOKENIZER.token_bytes(id)) for id in choice["token_ids"]]
    assert [token["logprob"] for token in content] == choice["logprobs"]["token_logprobs"]
    for token, texts in zip(content, choice["logprobs"]["top_logprobs"], strict=True):
        assert len(token["top_logprobs"]) == 4
        assert {each["token"]: each["logprob"] for each in [*token["top_logprobs"], token]} == texts


def test_a_special_token_has_no_bytes(client: TestClient) -> None:
    body = {"prompt": "a", "logit_bias": {"256": 100}, "logprobs": 1, "return_token_ids": True, "max_tokens": 5}
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert (choice["text"], choice["token_ids"]) == ("", [256])
    assert choice["logprobs"]["content"][0]["bytes"] is None


def test_a_stream_has_the_ids_of_the_prompt_once_for_each_choice(client: TestClient) -> None:
    body = {"prompt": ["ab", "c"], "n": 2, "max_tokens": 6, "seed": 1, "return_token_ids": True, "logprobs": 0}
    whole = client.post("/v1/completions", json=body).json()["choices"]
    text = client.post("/v1/completions", json={**body, "stream": True}).text
    found: dict[int, tuple[list[Any], list[int]]] = {}
    for part in text.split("\n\n")[:-2]:
        for choice in json.loads(part.removeprefix("data: "))["choices"]:
            prompts, ids = found.setdefault(choice["index"], ([], []))
            prompts.append(choice["prompt_token_ids"])
            ids += choice["token_ids"]
    for choice in whole:
        prompts, ids = found[choice["index"]]
        assert prompts[0] == choice["prompt_token_ids"] == [[97, 98], [99]][choice["index"] // 2]
        assert set(map(str, prompts[1:])) <= {"None"}
        assert ids == choice["token_ids"]


def test_an_answer_has_no_ids_unless_asked(client: TestClient) -> None:
    (choice,) = client.post("/v1/completions", json={"prompt": "a", "logprobs": 1}).json()["choices"]
    assert "token_ids" not in choice
    assert "content" not in choice["logprobs"]


# Inspections


def test_an_inspection_holds_the_models_own_numbers(client: TestClient) -> None:
    answer = client.post("/inspect", json={"prompt": "The fox", "top": 3}).json()
    ids = TOKENIZER.encode("The fox")
    found = inspect(MODEL, ids, top=3)
    assert (answer["layers"], answer["heads"], answer["skipped"]) == (2, 2, 0)
    assert answer["model"] == "tiny"
    packed = np.frombuffer(base64.b64decode(answer["attention"]), dtype="<u2").reshape(2, 2, -1) / 65535
    rows, columns = np.tril_indices(len(ids))
    assert np.abs(packed - found.attention.numpy()[:, :, rows, columns]).max() < 8e-6
    assert np.allclose(answer["lens"][1]["logprobs"], found.lens.top_logprobs[1], atol=6e-5)
    same = client.post("/inspect", json={"prompt": ids, "top": 3}).json()
    assert same == answer


def test_the_end_of_a_long_text_is_inspected(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = client.post("/inspect", json={"prompt": "x" * 90 + "end"}).json()
    assert (len(answer["tokens"]), answer["skipped"]) == (CONTEXT, 93 - CONTEXT)
    monkeypatch.setattr(model_views, "_MOST_WEIGHTS", 4 * 10)  # 4 heads, 4 tokens
    answer = client.post("/inspect", json={"prompt": "x" * 90 + "end"}).json()
    assert [answer["labels"][number] for number in answer["tokens"]] == ["x", "e", "n", "d"]


def test_inspections_that_cannot_be_made_are_one_sentence(client: TestClient) -> None:
    assert refusal(client, "/inspect", prompt="") == (400, "prompt ('') must have at least 1 character")
    assert refusal(client, "/inspect", prompt=[])[0] == 400
    assert refusal(client, "/inspect", prompt=[257]) == (400, "prompt[0] (257) must be a token id from 0 to 256")
    assert refusal(client, "/inspect", prompt="a" * 100_001)[0] == 400
    assert refusal(client, "/inspect", prompt="a", top=21)[0] == 400
    assert refusal(client, "/inspect", prompt="a", model="none")[0] == 404


def test_an_inspection_ends_at_its_deadline_and_stops_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def endless(body: object, model: object, check: Any) -> dict[str, Any]:
        try:
            while True:
                check()
        finally:
            ended.set()

    monkeypatch.setattr("minigpt.server.application.inspection", endless)
    with new_client("tiny", config=ServeConfig(timeout=0.2)) as client:
        assert refusal(client, "/inspect", prompt="a") == (504, "the request took longer than 0.2 s")
        assert ended.wait(60)


def test_work_whose_client_leaves_is_stopped_and_too_much_of_it_is_refused() -> None:
    async def run() -> None:
        side, started, stopped = Turns("inspections", 8), threading.Event(), threading.Event()

        def endless(check: Any) -> None:
            started.set()
            try:
                while True:
                    check()
            except StoppedError:
                stopped.set()
                raise

        first = asyncio.create_task(side.run(endless))
        assert await asyncio.to_thread(started.wait, 60)
        others = [asyncio.create_task(side.run(lambda _: stopped.is_set())) for _ in range(7)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="8 requests are waiting for inspections") as refused:
            await side.run(lambda _: True)
        assert refused.value.status == 429
        first.cancel()
        assert await asyncio.gather(*others) == [True] * 7

    asyncio.run(run())


def test_no_thread_outlives_its_work() -> None:
    """OpenMP would count its threads, and those of the worker would wait for each other in a slower way."""

    def is_running(thread: threading.Thread) -> bool:
        thread.join(60)
        return thread.is_alive()

    async def run() -> list[threading.Thread]:
        return [
            await Turns("", 1).run(lambda _: threading.current_thread()),
            await in_own_thread(threading.current_thread),
        ]

    threads = asyncio.run(run())
    assert threading.main_thread() not in threads
    assert not any(map(is_running, threads))


def test_a_stage_may_end_an_inspection() -> None:
    def refuse() -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        inspect(MODEL, [1, 2], on_stage=refuse)


# Reports


def test_the_report_is_that_of_the_run(tmp_path: Path) -> None:
    with new_client("tiny", directory=finished_run(tmp_path)) as client:
        response = client.get("/report", params={"model": "tiny"})
    assert response.status_code == 200
    assert "<title>fox</title>" in response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]


def test_a_model_without_a_record_of_its_run_has_no_report(tmp_path: Path) -> None:
    damaged = new_run(tmp_path / "damaged").directory
    (damaged / "training.json").write_text("{")
    for directory in (None, tmp_path, damaged):
        with new_client("tiny", directory=directory) as client:
            response = client.get("/report")
        assert response.status_code == 404
        message = response.json()["error"]["message"]
        assert message == "the model tiny has no report: its folder holds no record of a training run"


def test_inspections_and_reports_need_the_key() -> None:
    with new_client("tiny", config=ServeConfig(api_key="k")) as client:
        assert client.post("/inspect", json={"prompt": "a"}).status_code == 401
        assert client.get("/report").status_code == 401
        assert client.post("/inspect", json={"prompt": "a"}, headers={"Authorization": "Bearer k"}).status_code == 200
