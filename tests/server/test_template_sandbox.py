"""Chat templates that make too much are refused before they make it; others give what they give in jinja2's sandbox."""

import time
from typing import Any

import pytest
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from served import new_client

from minigpt.server import template_sandbox
from minigpt.server.template_sandbox import TemplateSandbox

MESSAGES = [
    {"role": "system", "content": " Be <kind> & brief. "},
    {"role": "user", "content": "Line 1\nline 2, 100% of {it}"},
    {"role": "assistant", "content": "<think>why</think>\n\nBecause.", "name": None},
]


def render(template: str, environment: Any = None) -> str:
    environment = environment or TemplateSandbox()
    return "".join(environment.from_string(template).generate(messages=MESSAGES, bos_token="<s>"))


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ '<|' ~ m['role'] ~ '|>' + m.content | trim + '\n' }}{% endfor %}",
        "{%- set ns = namespace(text='', n=0) %}{% for m in messages %}{% set ns.text = ns.text ~ m.content %}"
        "{% set ns.n = ns.n + loop.index0 % 2 %}{% endfor %}{{ ns.text | replace('\n', '\n ') }}{{ ns.n }}",
        "{% macro turn(m) %}{{ m.role | upper }}: {{ m.content.split('</think>')[-1].lstrip('\n') }}{% endmacro %}"
        "{% for m in messages | rejectattr('role', 'equalto', 'system') %}{{ turn(m) }}{% endfor %}",
        "{{ messages | map(attribute='content') | join(' / ') | indent(4, true) }}{{ messages[0] | tojson(indent=2) }}",
        "{% set text %}{% for m in messages[1:] %}{{ loop.cycle('a', 'b') }}{{ m.content }}{% endfor %}{% endset %}"
        "{{ text | length }}{{ '%-8s|%05.1f' | format('x', 2.5) }}{{ '%s and %d' % ('a', 10 ** 3) }}",
        "{% autoescape true %}{{ messages[0].content ~ '<b>' }}{{ messages[0].content | safe ~ '<u>' }}"
        "{% endautoescape %}{{ messages[0].content | escape ~ '<b>' }}"
        "{{ messages[2].get('name', 1) }}{{ undefined_name }}",
        "{% for key, value in messages[0].items() %}{{ key }}={{ value }}{% endfor %}{{ range(5) | list | sum }}"
        "{{ (messages | map('length') | list)[::-1] }}{{ 'abc' | reverse | list }}{{ ('ab' * 3).center(10) }}",
    ],
    ids=["turns", "namespace", "macro", "filters", "block and formats", "escapes", "loops and slices"],
)  # fmt: skip
def test_an_ordinary_template_gives_what_it_gives_in_jinja2s_sandbox(template: str) -> None:
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    assert render(template) == render(template, plain) != ""


DOUBLING = "{% set ns = namespace(x='x') %}{% for i in range(28) %}[]{% endfor %}{{ ns.x | length }}"
LARGE = "'x' * 5000"


@pytest.mark.parametrize(
    "template",
    [
        "{{ (7 ** 100000) > 1 }}",
        "{% set ns = namespace(x=7) %}{% for i in range(16) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ ('x' * 200000000) | length }}",
        "{{ ([0] * 50000000) | length }}",
        DOUBLING.replace("[]", "{% set ns.x = ns.x ~ ns.x %}"),
        DOUBLING.replace("[]", "{% set ns.x = ns.x + ns.x %}"),
        DOUBLING.replace("[]", "{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
        DOUBLING.replace("[]", "{% set ns.x = '%s%s' | format(ns.x, ns.x) %}"),
        DOUBLING.replace("[]", "{% set ns.x = [ns.x, ns.x] | join %}"),
        DOUBLING.replace("[]", "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}"),
        "{% set x %}{% for i in range(30000) %}" + 5000 * "x" + "{% endfor %}{% endset %}{{ x | length }}",
        "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + "{{ " + 27 * "f(" + "'x'" + 27 * ")" + " | length }}",
        "{{ 'x' | center(200000000) | length }}",
        "{{ 'x'.center(200000000) | length }}",
        "{{ ('%200000000d' % 1) | length }}",
        "{{ ('%*d' % (200000000, 1)) | length }}",
        "{{ '{:200000000}'.format(1) | length }}",
        "{{ (" + LARGE + ") | replace('x', 'x' * 50000) | length }}",
        "{{ (" + LARGE + ").replace('x', 'x' * 50000) | length }}",
        "{{ range(5000) | map('string') | join('x' * 50000) | length }}",
        "{{ ('\n' * 5000) | indent(50000, blank=true) | length }}",
        "{{ (" + "[" * 50 + "0, " * 1000 + "]" * 50 + ") | tojson(indent=5000) | length }}",
        "{{ 'x' | batch(50000000, 'x') | first | length }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(25) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
        "{{ ns.x | string | length }}",
        "{% for i in range(300) %}{% set x = 'x' | center(999999) %}{% endfor %}",
    ],
)  # fmt: skip
def test_a_template_that_makes_too_much_is_refused_before_it_does(template: str) -> None:
    began = time.process_time()
    with pytest.raises(
        TemplateError, match=r"it makes more than 100,000,000|has more than 10,000 bits|is not available"
    ):
        render(template)
    assert time.process_time() - began < 60


def test_a_written_list_that_holds_itself_many_times_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "_MOST_MADE", 100_000)
    nested = "{% set ns = namespace(x=[]) %}{% for i in range(18) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    for written in ("{{ ns.x }}", "{{ '' ~ ns.x }}", "{{ ns }}", "{{ '%s' % [ns.x] }}", "{{ ns.x | upper }}"):
        with pytest.raises(TemplateError, match="it makes more than 100,000 characters"):
            render(nested + written)


def test_nothing_is_computed_while_a_template_is_compiled() -> None:
    environment = TemplateSandbox()
    environment.from_string("{{ ('x' | center(99)) ~ 'x' }}{{ 'x' | upper }}{% if 'x' ~ 'y' > 'x' %}{% endif %}")
    assert environment._left == template_sandbox._MOST_MADE


def test_the_server_answers_a_template_that_makes_too_much_in_one_sentence() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    with new_client("tiny", chat_template="{{ 9 ** (9 ** 5) }}") as client:
        response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        "the model's chat template refuses the conversation: a whole number has more than 10,000 bits"
    )
