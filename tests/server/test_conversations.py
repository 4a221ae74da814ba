"""What a request for a chat completion may say, and what of it reaches the model."""

import asyncio
import json
from typing import Any

import pytest
from served import new_client, served_model

from minigpt.chat_logs.transcript import CHAT_TEMPLATE
from minigpt.generation.stopping import StopFilter
from minigpt.server.chat import new_chat
from minigpt.server.choices import Reply
from minigpt.server.request_bodies import ChatBody
from minigpt.server.serve_config import ServeConfig

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"
FIELDS = "{% for m in messages %}{{ m.content }}{{ m | length }};{% endfor %}a:"
MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
BODY: dict[str, Any] = {"messages": MESSAGES, "seed": 1}


def parts(part: object) -> dict[str, Any]:
    """The messages of a request with this part after a text."""
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]}


@pytest.mark.parametrize("template", [TEMPLATE, FIELDS, CHAT_TEMPLATE], ids=["contents", "fields", "minigpt's"])
def test_fields_that_ask_for_nothing_change_nothing(template: str) -> None:
    """The openai package sends a message of an answer back with all fields that it has."""
    user, assistant = MESSAGES
    nothing = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls", "name"))
    changes = {
        "messages": [user, {**nothing, **assistant, "annotations": [], "tool_calls": [], "reasoning_content": "hm"}],
        "response_format": {"type": "text"}, "logprobs": False, "store": False, "tools": [], "functions": [],
        "tool_choice": "auto", "function_call": "none", "parallel_tool_calls": True, "service_tier": "auto",
        "metadata": {"user": "me"}, "reasoning_effort": "low", "verbosity": "low", "modalities": ["text"],
        "prediction": {"type": "content", "content": "b"}, "safety_identifier": "x", "prompt_cache_key": "y",
    }  # fmt: skip
    with new_client("tiny", chat_template=template) as client:
        answers = [
            client.post("/v1/chat/completions", json={**BODY, "max_tokens": 8, **each}).json() for each in ({}, changes)
        ]
    assert answers[0]["choices"] == answers[1]["choices"]


@pytest.mark.parametrize(
    ("stop", "written", "content"),
    [
        ("\n\n", " a\n b\n \n c\n", "a\nb"),
        (["x", "\n\n"], " a\n b\n \n c\n", "a\nb"),
        ("b\nc", " a b\n c\n", "a "),
        ("\n", " a\n b\n", "a"),
        ("\n c", " a\n c\n  c\n", "a\nc"),
    ],
    ids=repr,
)
def test_a_stop_text_with_line_breaks_is_found_in_a_transcript(stop: object, written: str, content: str) -> None:
    """The further lines of a turn begin with a space, which is not in the answer."""
    model = served_model("tiny", chat_template=CHAT_TEMPLATE)
    body = ChatBody.model_validate({**BODY, "stop": stop, "max_tokens": 1})
    (request,) = asyncio.run(new_chat(body, model, ServeConfig(), None)).requests  # type: ignore[arg-type]
    text, has_ended = StopFilter(request.config.stop, one_turn=request.one_turn).feed(written)
    assert has_ended
    assert Reply(is_transcript=True).feed(text, "stop")[0] == content


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"max_completion_tokens": 0}, "max_completion_tokens", "(0) must be greater than or equal to 1"),
        (parts({"type": "image_url", "image_url": {"url": "data:"}}), "messages[0].content[1].type", "must be 'text'"),
        (parts({"type": "text"}), "messages[0].content[1].text", "is missing"),
        (parts({"text": "a"}), "messages[0].content[1].type", "is missing"),
        (parts("a"), "messages[0].content[1]", "must be an object"),
        ({"tools": [{"type": "function"}], "tool_choice": "auto"}, "tools", "cannot call tools"),
        ({"functions": [{"name": "f"}]}, "functions", "cannot call tools"),
        ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}, *MESSAGES]},
         "messages[0].tool_calls", "must have at most 0 items"),
        ({"modalities": ["text", "audio"]}, "modalities[1]", "must be 'text'"),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs (2) needs logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"store": True}, "store", "stores no conversations"),
        ({"response_format": {"type": "json_object"}}, "response_format.type", "must be 'text'"),
        ({"messages": [{"role": "user", "content": "a", "refusal": "no"}]},
         "messages[0].refusal", "unknown field 'messages[0].refusal'"),
    ],
)  # fmt: skip
def test_what_a_conversation_cannot_have_is_one_sentence(changes: dict[str, Any], param: str, message: str) -> None:
    with new_client("tiny", chat_template=TEMPLATE) as client:
        response = client.post("/v1/chat/completions", json={**BODY, **changes})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize("template", [TEMPLATE, CHAT_TEMPLATE], ids=["another", "minigpt's"])
@pytest.mark.parametrize("top", [None, 0, 3])
def test_log_probabilities_of_an_answer_have_openais_form(template: str, top: int | None) -> None:
    body = {**BODY, "max_tokens": 9, "logprobs": True, "logit_bias": {str(byte): 100 for byte in b"abcdefgh"}}
    body |= {} if top is None else {"top_logprobs": top}
    with new_client("tiny", chat_template=template) as client:
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
        plain = client.post("/v1/chat/completions", json={**body, "logprobs": False, "top_logprobs": None}).json()
        streamed = client.post("/v1/chat/completions", json={**body, "stream": True}).text
    assert choice["message"] == plain["choices"][0]["message"]
    assert plain["choices"][0]["logprobs"] is None
    assert choice["logprobs"]["refusal"] is None
    content = choice["logprobs"]["content"]
    if template == TEMPLATE:
        assert bytes(byte for token in content for byte in token["bytes"]).decode() == choice["message"]["content"]
    for token in content:
        assert token.keys() == {"token", "bytes", "logprob", "top_logprobs"}
        assert token["logprob"] < 0
        assert len(token["top_logprobs"]) == (top or 0)
        assert all(each.keys() == {"token", "bytes", "logprob"} for each in token["top_logprobs"])
    pieces = [json.loads(line.removeprefix("data: ")) for line in streamed.split("\n\n")[:-2]]
    assert [each for piece in pieces for part in piece["choices"] for each in part["logprobs"]["content"]] == content


def test_the_end_of_a_text_is_no_token_of_the_answer() -> None:
    with new_client("tiny", chat_template=TEMPLATE) as client:
        body = {**BODY, "logprobs": True, "logit_bias": {"256": 100}}
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert (choice["message"]["content"], choice["logprobs"]["content"]) == ("", [])
