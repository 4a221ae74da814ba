"""Chat templates run in jinja2's sandbox, in a child process that is killed when it takes too long or too much."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from served import SocketServer, new_client, post, served_model

from minigpt.server.api_error import ApiError
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import Models
from minigpt.server.template_process import TemplateProcess

MESSAGES = [{"role": "system", "content": " Be <kind>. "}, {"role": "user", "content": "é\n\U0001f98a"}]
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
ENDLESS = 6 * "{% for i in range(99999) %}" + 6 * "{% endfor %}"
# One operation: nothing in Python ends it.
DOUBLED = "{% set ns.NAME = [] %}{% for i in range(99) %}{% set ns.NAME = [ns.NAME, ns.NAME] %}{% endfor %}"
IN_C = "{% set ns = namespace() %}" + DOUBLED.replace("NAME", "x") + DOUBLED.replace("NAME", "y") + "{{ ns.x == ns.y }}"
ONE_CHILD = "{{ messages[0].content }}{% if messages[0].content == 'wait' %}" + ENDLESS + "{% endif %}"
HUGE = pytest.mark.skipif(sys.platform != "linux", reason="no limit on memory")


@asynccontextmanager
async def process(template: str, seconds: float = 10.0) -> AsyncIterator[TemplateProcess]:
    found = TemplateProcess("tiny", template, seconds=seconds, most=2)
    try:
        yield found
    finally:
        await found.stop()


def render(template: str, seconds: float = 10.0) -> str:
    async def run() -> str:
        async with process(template, seconds) as found:
            return await found.render(MESSAGES, {"bos_token": "<s>"})

    return asyncio.run(run())


def test_a_template_gets_the_conversation_and_the_special_tokens() -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.role[0] }}{{ m['content'] | trim }}|{% endfor %}"
    assert render(template + "{% if add_generation_prompt %}a{% endif %}") == "<s>sBe <kind>.|ué\n\U0001f98a|a"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no\n way') }}", "no way"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "is unsafe"),
        ("{{ messages.append(1) }}", "is unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{", "unexpected"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for i in range(99999) %}" + 99 * "x" + "{% endfor %}", "the text is too long"),
        pytest.param("{{ ('x' * 10**9) | length }}", "takes more than 512 MB of memory", marks=HUGE),
        pytest.param("{{ 'x' | center(10**9) | length }}", "takes more than 512 MB of memory", marks=HUGE),
    ],
)
def test_a_template_that_fails_is_one_sentence(template: str, reason: str) -> None:
    with pytest.raises(
        ApiError, match=f"^the model's chat template refuses the conversation: [^\n]*({reason})"
    ) as caught:
        render(template)
    assert caught.value.status == 400


@pytest.mark.parametrize("template", [ENDLESS, IN_C, "{{ 9 ** (9 ** 9) > 1 }}"], ids=["loop", "comparison", "number"])
def test_a_template_that_does_not_end_is_killed(template: str) -> None:
    with pytest.raises(ApiError, match=r"^the model's chat template took longer than 0.3 s$") as caught:
        render(template, seconds=0.3)
    assert caught.value.status == 504


def test_a_killed_child_starts_again_and_a_living_one_renders_again() -> None:
    async def run() -> None:
        async with process(ONE_CHILD, seconds=1.0) as found:

            async def text(content: str) -> str:
                return await found.render([{"role": "user", "content": content}], {})

            assert await text("a") == "a"
            first = found._child
            assert await text("b") == "b"
            assert found._child is first
            assert first is not None
            with pytest.raises(ApiError, match="took longer"):
                await text("wait")
            assert first.returncode is not None
            assert await text("c") == "c"
            child = found._child
            assert child is not None
            child.kill()  # by another program
            with pytest.raises(ApiError, match="its process has ended"):
                await text("d")
            assert await text("e") == "e"
            waiting = asyncio.create_task(text("wait"))
            await asyncio.sleep(0.1)
            child = found._child
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            assert child is not None
            assert child.returncode is not None

    asyncio.run(run())


def test_a_template_that_does_not_end_delays_only_its_own_model() -> None:
    models = Models(lambda: [served_model("bad", chat_template=ENDLESS), served_model("good", chat_template="a")])
    models.load()
    with (
        SocketServer(models, ServeConfig(max_batch=1, max_queue=1, timeout=20)) as server,
        contextlib.ExitStack() as stack,
    ):
        waiting = [server.send("/v1/chat/completions", {**BODY, "model": "bad"}) for _ in range(2)]
        for connection in waiting:
            stack.enter_context(contextlib.closing(connection))
        deadline = time.monotonic() + 60
        refused = b""
        while b"429" not in refused:  # until both have arrived
            assert time.monotonic() < deadline
            refused = server.ask(post("/v1/chat/completions", json.dumps({**BODY, "model": "bad"}).encode()))
        assert b"2 requests are waiting for the chat template of bad" in refused
        assert b"retry-after: " in refused.lower()
        answer = server.ask(post("/v1/chat/completions", json.dumps({**BODY, "model": "good"}).encode()))
        assert answer.startswith(b"HTTP/1.1 200")


def test_a_request_may_take_less_than_a_template() -> None:
    with new_client("tiny", config=ServeConfig(timeout=0.1), chat_template=ENDLESS) as client:
        response = client.post("/v1/chat/completions", json=BODY)
    assert response.status_code == 504
    assert response.json()["error"]["message"].endswith(" took longer than 0.1 s")
