"""What a request for a chat completion may say, and what of it reaches the model."""

from typing import Any

import pytest
from served import new_client, served_model

from minigpt.data.transcript import CHAT_TEMPLATE
from minigpt.generation.stopping import StopFilter
from minigpt.server.chat import Reply, chat_options
from minigpt.server.serve_config import ServeConfig

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"
FIELDS = "{% for m in messages %}{{ m.content }}{{ m | length }};{% endfor %}a:"
MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
BODY: dict[str, Any] = {"messages": MESSAGES, "seed": 1}


@pytest.mark.parametrize("template", [TEMPLATE, FIELDS, CHAT_TEMPLATE], ids=["contents", "fields", "minigpt's"])
def test_fields_that_ask_for_nothing_change_nothing(template: str) -> None:
    """The openai package sends a message of an answer back with all fields that it has."""
    user, assistant = MESSAGES
    nothing = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls", "name"))
    changes = {
        "messages": [user, {**nothing, **assistant}], "response_format": {"type": "text"}, "logprobs": False,
        "store": False, "tools": [], "tool_choice": "auto", "metadata": None,
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
    options = chat_options({**BODY, "stop": stop, "max_tokens": 1}, model, ServeConfig())
    text, has_ended = StopFilter(options.sampling.stop, one_turn=options.one_turn).feed(written)
    assert has_ended
    assert Reply(model).feed(text, "stop")[0] == content


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"tools": [{"type": "function"}], "tool_choice": "auto"}, "tools", "cannot call tools"),
        ({"logprobs": True}, "logprobs", "send a prompt to /v1/completions"),
        ({"store": True}, "store", "stores no conversations"),
        ({"response_format": {"type": "json_object"}}, "response_format.type", "must be one of text"),
        ({"messages": [{"role": "user", "content": "a", "refusal": "no"}]},
         "messages[0].refusal", "unknown field 'messages[0].refusal'"),
    ],
    ids=["tools", "logprobs", "store", "format", "refusal"],
)  # fmt: skip
def test_what_a_conversation_cannot_have_is_one_sentence(changes: dict[str, Any], param: str, message: str) -> None:
    with new_client("tiny", chat_template=TEMPLATE) as client:
        response = client.post("/v1/chat/completions", json={**BODY, **changes})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert message in response.json()["error"]["message"]
