"""`POST /v1/completions` answers as OpenAI's API does, with the model's own text and log-probabilities."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from builders import random_model
from served import CONTEXT, new_client
from starlette.testclient import TestClient

from minigpt.config import SamplingConfig
from minigpt.generation.streaming import generate_pieces
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

TOKENIZER = Tokenizer.named("bytes")


def the_model(seed: int = 0) -> GPT:
    return random_model(n_positions=CONTEXT, n_embd=32, std=0.2, seed=seed)


def ask(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refusal(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def stream(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    response = client.post("/v1/completions", json={"stream": True, **body})
    assert response.headers["content-type"].startswith("text/event-stream")
    *pieces, end, rest = response.text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    return [json.loads(piece.removeprefix("data: ")) for piece in pieces]


def generated(
    prompt: str, weights: int = 0, model: GPT | None = None, tokenizer: Tokenizer = TOKENIZER, **sampling: Any
) -> list[str]:
    """The texts of minigpt's own generation, with OpenAI's defaults."""
    config = SamplingConfig(**{"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 16, **sampling})
    texts = [""] * config.samples
    for piece in generate_pieces(model or the_model(weights), tokenizer, [prompt], config):
        texts[piece.row] += piece.text
    return texts


# Text


def test_an_answer_has_openais_form(client: TestClient) -> None:
    answer = ask(client, model="tiny", prompt="Once", max_tokens=5, temperature=0, user="me")
    (choice,) = answer.pop("choices")
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "text_completion",
        "model": "tiny",
        "usage": {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9},
    }
    assert choice == {
        "index": 0,
        "text": generated("Once", temperature=0, max_new_tokens=5)[0],
        "logprobs": None,
        "finish_reason": "length",
    }


def test_the_model_is_the_one_that_was_named(client: TestClient) -> None:
    for weights, name in enumerate(("tiny", "other")):
        answer = ask(client, model=name, prompt="Once", temperature=0)
        assert answer["choices"][0]["text"] == generated("Once", weights, temperature=0)[0]
        assert answer["model"] == name
    assert ask(client, prompt="Once")["model"] == "tiny"


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [97, 98], [[97, 98]]], ids=["text", "texts", "ids", "lists of ids"])
def test_a_prompt_may_have_four_forms(client: TestClient, prompt: object) -> None:
    assert ask(client, prompt=prompt, seed=3)["choices"][0]["text"] == generated("ab", seed=3)[0]


def test_no_prompt_and_the_end_of_text_begin_a_new_document(client: TestClient) -> None:
    texts = {
        ask(client, **body, seed=3)["choices"][0]["text"] for body in ({}, {"prompt": ""}, {"prompt": "<|endoftext|>"})
    }
    assert texts == {generated("", seed=3)[0]}


def test_equal_prompts_get_equal_texts_only_with_a_seed(client: TestClient) -> None:
    texts = [
        {choice["text"] for choice in ask(client, prompt=["ab"] * 4, **seed)["choices"]} for seed in ({}, {"seed": 3})
    ]
    assert [len(each) for each in texts] == [4, 1]


def test_choices_are_ordered_by_prompt_then_by_sample(client: TestClient) -> None:
    answer = ask(client, prompt=["ab", "c"], n=2, seed=7)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    expected = [text for prompt in ("ab", "c") for text in generated(prompt, seed=7, samples=2)]
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 64, "total_tokens": 67}


def test_best_of_returns_the_most_likely_texts_first(client: TestClient) -> None:
    everything = ask(client, prompt="ab", n=6, seed=7, logprobs=0)["choices"]
    mean = {choice["text"]: sum(choice["logprobs"]["token_logprobs"]) / 16 for choice in everything}
    answer = ask(client, prompt="ab", n=2, best_of=6, seed=7)
    assert [choice["text"] for choice in answer["choices"]] == sorted(mean, key=mean.__getitem__, reverse=True)[:2]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]
    assert answer["usage"]["completion_tokens"] == 96


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": 3},
        {"min_p": 0.2},
        {"typical_p": 0.5},
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 2},
        {"presence_penalty": 1.5, "frequency_penalty": -1.0},
        {"top_p": 0.5, "temperature": 1.5},
        {"bad_words": ("a", "e")},
        {"until": "sentence"},
    ],
    ids=lambda sampling: " ".join(sampling),
)
def test_sampler_settings_have_the_names_of_the_sampler(client: TestClient, sampling: dict[str, Any]) -> None:
    found = ask(client, prompt="ab", seed=5, max_tokens=30, **sampling)["choices"][0]["text"]
    assert found == generated("ab", seed=5, max_new_tokens=30, **sampling)[0]


@pytest.mark.parametrize("top_k", [0, -1])
def test_a_top_k_of_0_or_minus_1_is_off(client: TestClient, top_k: int) -> None:
    assert ask(client, prompt="ab", seed=5, top_k=top_k)["choices"][0]["text"] == generated("ab", seed=5)[0]


def test_what_clients_send_to_bill_or_route_a_request_is_ignored(client: TestClient) -> None:
    more = {"service_tier": "auto", "metadata": {"a": "b"}, "safety_identifier": "x", "prompt_cache_key": "y"}
    assert ask(client, prompt="ab", seed=5, **more)["choices"][0]["text"] == generated("ab", seed=5)[0]
    pieces = stream(client, prompt="ab", seed=5, stream_options={"include_usage": True, "include_obfuscation": False})
    assert pieces[-1]["usage"]["completion_tokens"] == 16


def test_logit_bias_is_by_token_id(client: TestClient) -> None:
    answer = ask(client, prompt="ab", logit_bias={"120": 100, "121": -100}, max_tokens=4)
    assert answer["choices"][0]["text"] == "xxxx"


def test_a_text_ends_before_a_stop_string(client: TestClient) -> None:
    whole = ask(client, prompt="ab", seed=5, max_tokens=30)["choices"][0]["text"]
    stop = whole[10:12]
    answer = ask(client, prompt="ab", seed=5, max_tokens=30, stop=[stop, "never"], logprobs=1)
    (choice,) = answer["choices"]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"]["text_offset"][-1] < len("ab" + choice["text"])
    assert ask(client, prompt="ab", seed=5, max_tokens=30, stop=stop)["choices"][0]["text"] == choice["text"]


def test_a_text_that_ends_by_itself_says_so(client: TestClient) -> None:
    answer = ask(client, prompt="ab", logit_bias={"256": 100}, logprobs=1)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    assert choice["logprobs"]["tokens"] == ["<|endoftext|>"]
    assert answer["usage"]["completion_tokens"] == 1


def test_a_text_may_slide_beyond_the_context_if_asked(client: TestClient) -> None:
    for context in ("slide", "keep-first:4"):
        found = ask(client, prompt="ab", seed=5, max_tokens=150, context=context)["choices"][0]["text"]
        assert found == generated("ab", seed=5, max_new_tokens=150, context=context)[0]


# Token healing


@pytest.fixture(scope="module")
def words() -> Iterator[tuple[TestClient, GPT, Tokenizer]]:
    """A server whose tokenizer has merges, in which a space belongs to the word after it."""
    tokenizer = Tokenizer.train(["the cat sat on the mat and the cat ran to the man " * 40], "bpe:300")
    model = random_model(n_positions=CONTEXT, n_embd=32, std=0.2, vocab_size=tokenizer.vocab_size)
    with new_client("tiny", model=model, tokenizer=tokenizer) as client:
        yield client, model, tokenizer


def test_the_space_at_the_end_of_a_prompt_is_generated_again(words: tuple[TestClient, GPT, Tokenizer]) -> None:
    client, model, tokenizer = words
    prompt = {"prompt": "and the ", "max_tokens": 8, "seed": 3}
    (expected,) = generated("and the ", model=model, tokenizer=tokenizer, max_new_tokens=8, seed=3)
    (choice,) = ask(client, **prompt, logprobs=0)["choices"]
    assert choice["text"] == expected
    assert choice["logprobs"]["tokens"][0] == " " + expected[: len(choice["logprobs"]["tokens"][0]) - 1]
    first = len("and the")
    assert choice["logprobs"]["text_offset"][:2] == [first, first + len(choice["logprobs"]["tokens"][0])]
    assert "".join(part["text"] for piece in stream(client, **prompt) for part in piece["choices"]) == expected
    as_ids = ask(client, **{**prompt, "prompt": tokenizer.encode("and the ")})["choices"][0]["text"]
    assert ask(client, **prompt, token_healing=False)["choices"][0]["text"] == as_ids != expected


def test_an_echoed_prompt_keeps_its_own_tokens(words: tuple[TestClient, GPT, Tokenizer]) -> None:
    client, _, tokenizer = words
    (choice,) = ask(client, prompt="and the ", echo=True, logprobs=0, max_tokens=1, temperature=0)["choices"]
    assert choice["logprobs"]["tokens"][:-1] == [tokenizer.decode([id]) for id in tokenizer.encode("and the ")]
    assert choice["text"].startswith("and the ")


# Log-probabilities


def test_log_probabilities_are_those_of_the_model(client: TestClient) -> None:
    answer = ask(client, prompt="Once", max_tokens=6, temperature=0, logprobs=3, allow_invalid_utf8=True)
    (choice,) = answer["choices"]
    scores = choice["logprobs"]
    ids = [*b"Once"]
    with torch.no_grad():
        for logprob, top in zip(scores["token_logprobs"], scores["top_logprobs"], strict=True):
            expected = the_model()(torch.tensor([ids])).log_softmax(-1)[0, -1]
            assert logprob == pytest.approx(float(expected.max()), abs=1e-4)
            assert sorted(top.values(), reverse=True) == pytest.approx(expected.topk(3).values.tolist(), abs=1e-4)
            ids.append(int(expected.argmax()))
    text = "Once" + choice["text"]
    offset = len("Once")  # OpenAI counts from the beginning of the prompt, with echo or without
    assert scores["text_offset"][0] == offset
    for at, begin in enumerate(scores["text_offset"]):
        assert begin <= len(text)
        assert begin >= offset
        offset = begin
        token = scores["tokens"][at]
        # the character that another token left incomplete is shown first, as U+FFFD
        assert token.startswith("bytes:") or token in text[begin : begin + len(token) + 1]


def test_echo_scores_the_prompt(client: TestClient) -> None:
    answer = ask(client, prompt="Once upon", max_tokens=1, temperature=0, echo=True, logprobs=1)
    (choice,) = answer["choices"]
    scores = choice["logprobs"]
    assert choice["text"].startswith("Once upon")
    assert scores["tokens"][:9] == list("Once upon")
    assert scores["text_offset"][:9] == list(range(9))
    assert (scores["token_logprobs"][0], scores["top_logprobs"][0]) == (None, None)
    with torch.no_grad():
        expected = the_model()(torch.tensor([[*b"Once upon"]])).log_softmax(-1)[0]
    for at in range(1, 9):
        own, best = float(expected[at - 1, b"Once upon"[at]]), float(expected[at - 1].max())
        assert scores["token_logprobs"][at] == pytest.approx(own, abs=1e-4)
        assert max(scores["top_logprobs"][at].values()) == pytest.approx(best, abs=1e-4)
    assert len(scores["tokens"]) == 10


def test_echo_without_log_probabilities_repeats_the_prompt(client: TestClient) -> None:
    (first, second) = ask(client, prompt="Once", echo=True, n=2, seed=1)["choices"]
    assert [first["text"], second["text"]] == ["Once" + text for text in generated("Once", seed=1, samples=2)]


@pytest.mark.parametrize("logprobs", [None, 0])
@pytest.mark.parametrize(("prompt", "text"), [("", ""), ("<|endoftext|>", "<|endoftext|>"), ([97, 98], "ab")], ids=str)
def test_an_echo_is_the_prompts_own_text(client: TestClient, prompt: object, text: str, logprobs: int | None) -> None:
    body = {"prompt": prompt, "echo": True, "max_tokens": 4, "seed": 1, "logprobs": logprobs}
    (choice,) = ask(client, **body)["choices"]
    (plain,) = ask(client, **{**body, "echo": False})["choices"]
    assert choice["text"] == text + plain["text"]
    assert "".join(part["text"] for piece in stream(client, **body) for part in piece["choices"]) == choice["text"]
    if logprobs is not None:
        n = len(prompt) if isinstance(prompt, list) else 1
        assert choice["logprobs"]["text_offset"][n:] == plain["logprobs"]["text_offset"]
        assert plain["logprobs"]["text_offset"][0] == len(text)


@pytest.mark.parametrize("best_of", [1, 3])
def test_a_prompt_can_be_scored_without_continuing_it(client: TestClient, best_of: int) -> None:
    answer = ask(client, prompt=["Once", "upon"], best_of=best_of, max_tokens=0, echo=True, logprobs=0)
    assert [choice["text"] for choice in answer["choices"]] == ["Once", "upon"]
    assert [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]] == [4, 4]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 8, "completion_tokens": 0, "total_tokens": 8}


@pytest.mark.parametrize(
    "body", [{"prompt": "Once"}, {"prompt": "Once" * CONTEXT, "context": "slide"}, {"prompt": "a", "n": 2}], ids=str
)
def test_a_prompt_can_be_echoed_without_scores_or_a_text(client: TestClient, body: dict[str, Any]) -> None:
    (piece,) = stream(client, **body, max_tokens=0, echo=True)
    for answer in (ask(client, **body, max_tokens=0, echo=True), piece):
        assert [choice["index"] for choice in answer["choices"]] == list(range(body.get("n", 1)))
        for choice in answer["choices"]:
            assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == (body["prompt"], "length", None)


def test_half_a_character_is_a_token_of_bytes(client: TestClient) -> None:
    answer = ask(client, prompt="é", max_tokens=0, echo=True, logprobs=0)
    assert answer["choices"][0]["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 0]
    assert answer["choices"][0]["text"] == "é"


# Streams


def test_the_pieces_of_a_stream_join_to_the_answer(client: TestClient) -> None:
    body = {"prompt": ["Once", "b"], "n": 2, "seed": 4, "max_tokens": 20, "logprobs": 2, "echo": True}
    whole, pieces = ask(client, **body), stream(client, **body)
    for choice in whole["choices"]:
        parts = [part for piece in pieces for part in piece["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [choice["finish_reason"]]
        for name, values in choice["logprobs"].items():
            assert [value for part in parts for value in part["logprobs"][name]] == values
    assert len({piece["id"] for piece in pieces}) == 1
    assert not any("usage" in piece for piece in pieces)


def test_a_stream_counts_its_tokens_if_asked(client: TestClient) -> None:
    pieces = stream(client, prompt="Once", max_tokens=3, temperature=0, stream_options={"include_usage": True})
    assert pieces[-1]["choices"] == []
    assert pieces[-1]["usage"] == {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    assert all(piece["usage"] is None for piece in pieces[:-1])


def test_a_stop_string_never_appears_in_a_stream(client: TestClient) -> None:
    whole = ask(client, prompt="ab", seed=5, max_tokens=30)["choices"][0]["text"]
    pieces = stream(client, prompt="ab", seed=5, max_tokens=30, stop=whole[9:12])
    assert "".join(part["text"] for piece in pieces for part in piece["choices"]) == whole[: whole.index(whole[9:12])]


# What cannot be done


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"prompt": "a", "suffix": "b"}, "suffix", "cannot fill a gap"),
        ({"prompt": "a" * 50}, "max_tokens", f"context length is {CONTEXT} tokens"),
        ({"prompt": "a" * 70}, "prompt", f"context length is {CONTEXT} tokens"),
        ({"prompt": "a" * 70, "echo": True, "logprobs": 1, "context": "slide"}, "prompt", "context length"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "with echo"),
        ({"prompt": "a", "n": 3, "best_of": 2}, "best_of", "at least n"),
        ({"prompt": "a", "best_of": 2, "stream": True}, "best_of", "with stream"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "less than or equal to 20"),
        ({"prompt": "a", "temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"prompt": "a", "temperature": "hot"}, "temperature", "must be a valid number"),
        ({"prompt": "a", "temperature": True}, "temperature", "must be a valid number"),
        ({"prompt": "a", "max_tokens": 10**400}, "max_tokens", "less than or equal to"),
        ({"prompt": "a", "seed": 2**80}, "seed", "less than or equal to"),
        ({"prompt": "a", "top_k": -2}, "top_k", "greater than or equal to -1"),
        ({"prompt": "a", "no_repeat_ngram_size": 101}, "no_repeat_ngram_size", "less than or equal to 100"),
        ({"prompt": [257]}, "prompt", "from 0 to 256"),
        ({"prompt": [-1]}, "prompt[0]", "greater than or equal to 0"),
        ({"prompt": [[1], []]}, "prompt[1]", "at least 1 item"),
        ({"prompt": [1, "a"]}, "prompt[1]", "must be"),
        ({"prompt": {"a": 1}}, "prompt", "must be a string or an array"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "token id"),
        ({"prompt": "a", "logit_bias": {"999": 1}}, "logit_bias", "from 0 to 256"),
        ({"prompt": "a", "stop": [""]}, "stop[0]", "at least 1 character"),
        ({"prompt": "a", "stop": "b" * 201}, "stop", "at most 200 characters"),
        ({"prompt": "a", "stop": ["a", "b" * 201]}, "stop[1]", "at most 200 characters"),
        ({"prompt": "a", "bad_words": ["a", "b" * 201]}, "bad_words[1]", "at most 200 characters"),
        ({"prompt": "a", "context": "wrong"}, None, "must be slide"),
        ({"prompt": "a", "context": "keep-first:60"}, None, "half the context"),
        ({"prompt": "a", "min_new_tokens": 99}, "min_new_tokens", "at most max_tokens (16)"),
        ({"prompt": "a", "temprature": 1}, "temprature", "did you mean temperature?"),
        ({"prompt": ["a"] * 129}, "prompt", "at most 128"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt", "130 texts in one request are more than the 128 that this server"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_what_cannot_be_done_is_refused_in_one_sentence(
    client: TestClient, body: dict[str, Any], param: str | None, message: str
) -> None:
    error = refusal(client, **body)
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param or param is None
    assert error["message"].isascii()
    assert "\n" not in error["message"]


def test_a_text_that_is_too_long_has_openais_code(client: TestClient) -> None:
    assert refusal(client, prompt="a" * 70)["code"] == "context_length_exceeded"


def test_more_tokens_than_the_server_accepts_are_refused(client: TestClient) -> None:
    error = refusal(client, prompt=["a"] * 80, max_tokens=4000, context="slide")
    assert "320,080 tokens in one request" in error["message"]


def test_more_probabilities_than_the_server_lists_are_refused(client: TestClient) -> None:
    error = refusal(client, prompt=["a"] * 80, max_tokens=3000, context="slide", logprobs=20)
    assert error["param"] == "logprobs"
    assert "240,080 tokens with 20 alternatives each are 5,041,680 probabilities" in error["message"]


def test_an_error_does_not_ask_for_what_was_sent(client: TestClient) -> None:
    body = {"prompt": "a" * 60, "echo": True, "logprobs": 1}
    assert "slide" in refusal(client, **body)["message"]
    assert "slide" not in refusal(client, **body, context="slide")["message"]


def test_an_echoed_prompt_counts_for_each_text(client: TestClient) -> None:
    body = {"prompt": [1] * 20_000, "n": 20, "echo": True, "context": "slide", "max_tokens": 1}
    assert "400,020 tokens in one request" in refusal(client, **body)["message"]


def test_an_unknown_model_is_404(client: TestClient) -> None:
    response = client.post("/v1/completions", json={"model": "x\n", "prompt": "a"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "'x\\n'" in response.json()["error"]["message"]


def test_a_damaged_model_is_an_error_of_the_server_and_others_go_on() -> None:
    model = the_model()
    model.final_norm.weight.data.fill_(math.nan)
    with new_client("tiny", model=model) as client:
        response = client.post("/v1/completions", json={"prompt": "a"})
        assert response.status_code == 500
        assert "NaN" in response.json()["error"]["message"] or "nan" in response.json()["error"]["message"]
        (piece,) = stream(client, prompt="a")
        assert piece["error"]["type"] == "server_error"


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_score_by_a_damaged_model_is_an_error_of_the_server(max_tokens: int) -> None:
    model = the_model()
    model.final_norm.weight.data.fill_(math.nan)
    body = {"prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    with new_client("tiny", model=model) as client:
        response = client.post("/v1/completions", json=body)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "generation_failed"
        assert stream(client, **body)[-1]["error"]["code"] == "generation_failed"


def test_the_same_bias_for_every_token_changes_nothing(client: TestClient) -> None:
    bias = {str(id): -100 for id in range(257)}
    biased, plain = (ask(client, prompt="a", temperature=0, **options) for options in ({"logit_bias": bias}, {}))
    assert biased["choices"] == plain["choices"]
