"""The endpoints beside completions: models, tokenizers, conversations, health, metrics and the OpenAPI file."""

import asyncio
import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from builders import random_model
from jinja2.sandbox import ImmutableSandboxedEnvironment
from served import CONTEXT, new_client, new_models, served_model
from starlette.testclient import TestClient

from minigpt.chat_logs.transcript import CHAT_TEMPLATE
from minigpt.generation.healing import Prompt
from minigpt.server.application import build_application
from minigpt.server.chat import encode_conversation
from minigpt.server.choices import Reply
from minigpt.server.completion_options import new_completion
from minigpt.server.model_views import tokenize, tokenizer_info
from minigpt.server.openapi import _OPERATIONS
from minigpt.server.request_bodies import CompletionBody, TokenizeBody
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import ServedModel
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import bytes_to_unicode

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)

# Models


def test_models_are_listed_with_their_context_length(client: TestClient) -> None:
    answer = client.get("/v1/models").json()
    assert answer["object"] == "list"
    assert [model["id"] for model in answer["data"]] == ["tiny", "other"]
    assert client.get("/v1/models/other").json() == answer["data"][1]
    assert answer["data"][0]["max_model_len"] == CONTEXT
    assert client.get("/v1/models/none").status_code == 404
    assert client.get("/health").json() == {"status": "ok"}


def test_models_that_are_being_loaded_are_503_with_a_time_to_retry() -> None:
    application = build_application(new_models("tiny"), ServeConfig(), lambda _: None)
    with TestClient(application, base_url="http://localhost") as client:
        for path in ("/health", "/v1/models", "/tokenizer_info"):
            response = client.get(path)
            assert response.status_code == 503
            assert response.headers["retry-after"] == "2"
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 503


# Tokenizers


def test_text_becomes_ids_and_text_again(client: TestClient) -> None:
    answer = client.post("/tokenize", json={"prompt": "añ", "add_special_tokens": False}).json()
    assert answer == {"tokens": [97, 195, 177], "count": 3, "max_model_len": CONTEXT}
    assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "añ"}
    assert client.post("/tokenize", json={"prompt": ""}).json()["tokens"] == []


def test_the_name_of_a_special_token_alone_is_the_token(client: TestClient) -> None:
    info = client.get("/tokenizer_info").json()
    assert client.post("/tokenize", json={"prompt": info["eos_token"]}).json()["tokens"] == [256]
    assert len(client.post("/tokenize", json={"prompt": f"{info['eos_token']} "}).json()["tokens"]) > 1
    assert info["vocab_size"] == 257


def test_ids_that_the_tokenizer_does_not_have_are_refused(client: TestClient) -> None:
    response = client.post("/detokenize", json={"tokens": [1, 257]})
    assert response.status_code == 400
    assert "tokens[1] (257)" in response.json()["error"]["message"]


# Conversations


def test_a_model_without_a_template_names_the_other_endpoint(client: TestClient) -> None:
    response = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
    assert response.status_code == 400
    assert "/v1/completions" in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == "no_chat_template"


def test_a_conversation_is_continued_after_its_template() -> None:
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    with new_client("tiny", chat_template=TEMPLATE) as client:
        body = {"seed": 1, "max_tokens": 8}
        chat = client.post("/v1/chat/completions", json={"messages": messages, **body}).json()
        text = client.post("/v1/completions", json={"prompt": "s:be;u:hi;a:", **body}).json()
        streamed = client.post("/v1/chat/completions", json={"messages": messages, "stream": True, **body}).text
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": text["choices"][0]["text"]}
    assert (chat["object"], chat["id"][:9]) == ("chat.completion", "chatcmpl-")
    pieces = [json.loads(part.removeprefix("data: ")) for part in streamed.split("\n\n")[:-2]]
    deltas = [piece["choices"][0]["delta"] for piece in pieces]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta["content"] for delta in deltas) == text["choices"][0]["text"]


@pytest.mark.parametrize("template", [TEMPLATE, CHAT_TEMPLATE], ids=["another", "minigpt's"])
def test_a_developer_is_the_system_and_text_parts_are_joined(template: str) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    conversations = [
        [{"role": "developer", "content": "be"}, {"role": "user", "content": parts}],
        [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}],
    ]
    with new_client("tiny", chat_template=template) as client:
        answers = [
            client.post("/v1/chat/completions", json={"messages": messages, "seed": 1, "max_tokens": 12}).json()
            for messages in conversations
        ]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["usage"] == answers[1]["usage"]


def conversation_prompt(model: ServedModel, content: str) -> Prompt:
    """The prompt that a user's message becomes; the template is rendered in this process."""

    async def render(messages: Any, tokens: Any) -> str:
        template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        return template.from_string(model.chat_template or "").render(messages=messages, **tokens)

    messages = [{"role": "user", "content": content}]
    return asyncio.run(encode_conversation(messages, model, render, token_healing=True))


NAMES = {"<|endoftext|>": 256, "<|im|>": 257, "<|im|>x": 258}
SPECIAL = Tokenizer.from_vocabulary(
    {bytes_to_unicode(bytes([byte])): byte for byte in range(256)}, [], special=NAMES, end_of_text="<|endoftext|>"
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}a:", [256, "{}", 256, "a:"]),
        ("{% for m in messages %}<|im|>{{ m.role }}\n{{ m.content | upper }}<|im|>x{% endfor %}",
         [257, "user\n", "{}", 258]),
        ("{{ '<|' ~ 'im|>' }}<|im|>{{ messages[0].content | tojson }}", [257, 257, '"{}"']),
        ("{{ messages[0].content }} ", ["{} "]),
    ],
    ids=["roles", "names", "joined", "none"],
)  # fmt: skip
@pytest.mark.parametrize("content", ["HI", "", "<|endoftext|>", "A<|im|>x<|im|><|im|>B", "@123."])
def test_special_tokens_are_those_that_the_template_writes(
    template: str, expected: list[int | str], content: str
) -> None:
    model = served_model(
        "tiny",
        model=random_model(n_positions=CONTEXT, vocab_size=SPECIAL.vocab_size),
        tokenizer=SPECIAL,
        chat_template=template,
    )
    prompt = conversation_prompt(model, content)
    parts = [part if isinstance(part, int) else part.format(content) for part in expected]
    assert prompt.ids == [id for part in parts for id in ([part] if isinstance(part, int) else part.encode())]


def test_names_of_special_tokens_are_text_in_completions_unless_the_request_asks() -> None:
    body = {"prompt": "a<|im|>x", "max_tokens": 1, "return_token_ids": True, "temperature": 0}
    network = random_model(n_positions=CONTEXT, vocab_size=SPECIAL.vocab_size)
    with new_client("tiny", model=network, tokenizer=SPECIAL, chat_template=TEMPLATE) as client:

        def ids(**fields: object) -> list[int]:
            answer = client.post("/v1/completions", json={**body, **fields}).json()
            return list(answer["choices"][0]["prompt_token_ids"])

        assert ids() == ids(special_tokens=False) == list(b"a<|im|>x")
        assert ids(special_tokens=True) == [ord("a"), 258]
        chat = {"messages": [{"role": "user", "content": "a"}], "special_tokens": True}
        assert client.post("/v1/chat/completions", json=chat).status_code == 400


def test_a_prompt_begins_with_the_tokens_that_its_tokenizer_puts_before_it() -> None:
    tokenizer = Tokenizer(replace(SPECIAL.byte_level("a test"), prefix=(257,)))
    network = random_model(n_positions=CONTEXT, vocab_size=tokenizer.vocab_size)
    model = served_model("tiny", model=network, tokenizer=tokenizer, chat_template="{{ messages[0].content }}")
    (request,) = new_completion(CompletionBody.model_validate({"prompt": "a"}), model, ServeConfig()).requests
    assert request.prompt == [257, ord("a")]
    assert conversation_prompt(model, "a").ids == [ord("a")]  # as in transformers: the template writes all of them
    assert tokenize(TokenizeBody.model_validate({"prompt": "a"}), model, ServeConfig())["tokens"] == [257, ord("a")]
    assert tokenize(TokenizeBody.model_validate({"prompt": "a", "add_special_tokens": False}), model, ServeConfig())[
        "tokens"
    ] == [ord("a")]
    assert tokenizer_info(model)["add_bos_token"] is True


def test_the_answer_of_a_transcript_ends_with_its_turn() -> None:
    """Further lines of a turn begin with a space, as in the text that the model was trained on."""
    assert Reply(is_transcript=True).feed(" Hi.\n More.\nX: no", "length") == ("Hi.\nMore.", "stop")
    with new_client("tiny", chat_template=CHAT_TEMPLATE) as client:
        body = {"messages": [{"role": "user", "content": "a\nb"}], "seed": 1, "max_tokens": 20}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        text = client.post("/v1/completions", json={"prompt": "User: a\n b\nAssistant:", **body_without(body)}).json()
        chat = client.post("/v1/chat/completions", json=body).json()
    assert text["choices"][0]["text"].lstrip().startswith(chat["choices"][0]["message"]["content"].split("\n")[0])


TURN = {"messages": [{"role": "user", "content": "hi"}], "logit_bias": {"10": 100}}  # the model writes line breaks only


@pytest.mark.parametrize(("changes", "n_tokens"), [({}, 2), ({"min_new_tokens": 6}, 6), ({"n": 2}, 4)], ids=str)
def test_generation_ends_with_the_turn(changes: dict[str, Any], n_tokens: int) -> None:
    """A line that does not begin with a space begins another turn, whatever it says."""
    body = {**TURN, "max_tokens": 20, **changes}
    with new_client("tiny", chat_template=CHAT_TEMPLATE) as client:
        whole = client.post("/v1/chat/completions", json=body).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = client.post("/v1/chat/completions", json=body | options).text
    *pieces, last = [json.loads(part.removeprefix("data: ")) for part in streamed.split("\n\n")[:-2]]
    assert whole["usage"]["completion_tokens"] == last["usage"]["completion_tokens"] == n_tokens
    choices = [choice for piece in pieces for choice in piece["choices"]]
    assert {choice["message"]["content"] for choice in whole["choices"]} == {""}
    assert {choice["finish_reason"] for choice in whole["choices"]} == {"stop"}
    ends = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert ends == ["stop"] * len(whole["choices"])


def body_without(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "messages"}


def test_without_a_number_of_tokens_an_answer_may_fill_the_context() -> None:
    with new_client("tiny", chat_template=TEMPLATE) as client:
        body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "logit_bias": {"256": -100}}
        assert client.post("/v1/chat/completions", json=body).json()["usage"]["total_tokens"] == CONTEXT


def test_a_conversation_may_be_longer_than_the_context_if_it_slides() -> None:
    with new_client("tiny", chat_template=TEMPLATE) as client:
        body = {"messages": [{"role": "user", "content": "hi" * CONTEXT}], "logit_bias": {"256": -100}}
        refused = client.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400
        assert '"context": "slide"' in refused.json()["error"]["message"]
        for context in ("slide", "keep-first:32"):
            answer = client.post("/v1/chat/completions", json={**body, "context": context}).json()
            assert answer["usage"]["completion_tokens"] == CONTEXT
            answer = client.post("/v1/chat/completions", json={**body, "context": context, "max_tokens": 3}).json()
            assert answer["usage"]["completion_tokens"] == 3


# The server itself


def test_metrics_count_requests_and_tokens() -> None:
    with new_client("tiny") as client:
        client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 5, "n": 2, "logit_bias": {"256": -100}})
        client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 0, "echo": True})  # has no first token
        client.get("/no such path")
        text = client.get("/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines['minigpt_responses_total{path="/v1/completions",status="200"}'] == "2.0"
    assert lines['minigpt_responses_total{path="other",status="404"}'] == "1.0"
    assert lines["minigpt_prompt_tokens_total"] == "6.0"
    assert lines["minigpt_generated_tokens_total"] == "10.0"
    assert lines["minigpt_texts"] == "0.0"
    assert lines["minigpt_request_seconds_count"] == "2.0"
    assert lines['minigpt_first_token_seconds_bucket{le="+Inf"}'] == "1.0"


def test_metrics_count_errors_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.server.application.tokenizer_info", None)  # calling it raises TypeError
    with new_client("tiny") as client:
        assert client.get("/tokenizer_info").status_code == 500
        text = client.get("/metrics").text
    assert 'minigpt_responses_total{path="/tokenizer_info",status="500"} 1.0\n' in text


def test_the_openapi_file_describes_the_answers() -> None:
    bodies = {
        "/v1/completions": {"prompt": "a", "logprobs": 2, "echo": True, "return_token_ids": True},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 2},
        "/inspect": {"prompt": "ab"},
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [97]},
    }
    with new_client("tiny", chat_template=CHAT_TEMPLATE) as client:
        for path, body, answer, *_ in _OPERATIONS:
            url = path.replace("{model}", "tiny")
            response = client.request("GET" if body is None else "POST", url, json=bodies.get(path))
            if not isinstance(answer, str):
                answer.model_validate_json(response.content)


def test_every_endpoint_is_in_the_openapi_file(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    routes = {route.path.replace(":path", "") for route in client.app.routes}  # type: ignore[attr-defined]
    assert routes - {"/", "/openapi.json"} == set(paths)


def test_other_paths_and_methods_are_json_errors(client: TestClient) -> None:
    for method, path, status in (("GET", "/nothing", 404), ("GET", "/v1/completions", 405), ("POST", "/health", 405)):
        response = client.request(method, path)
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_many_requests_at_once_get_what_each_gets_alone(client: TestClient) -> None:
    bodies = [
        {"prompt": "Once" * (1 + number % 4), "seed": number, "max_tokens": 12, "logprobs": 1} for number in range(16)
    ]
    alone = [client.post("/v1/completions", json=body).json()["choices"] for body in bodies]
    found: list[object] = [None] * len(bodies)

    def ask(number: int) -> None:
        found[number] = client.post("/v1/completions", json=bodies[number]).json()["choices"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone
