"""The page of `minigpt serve` in a real browser: it writes, branches, stops and compares, by mouse and by keys."""

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from builders import finished_run, random_model
from served import SocketServer, served_model

from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import Models

HOSTILE = "</textarea></script><script>alert(1)</script><b>x</b>"
NAMES = ("tiny", "<b>other</b>")
PIECES = "[...document.querySelectorAll('.piece')]"
CHOICES = "[...document.querySelectorAll('.choices button')]"
OTHER = f"{CHOICES}.find(e => !e.ariaCurrent && /^[!-~]$/.test(e.querySelector('bdi').textContent))"  # one character


@contextmanager
def serving(config: ServeConfig | None = None, **options: Any) -> Iterator[SocketServer]:
    """Two random models that speak bytes, so that most characters beyond ASCII are several tokens."""

    def load() -> list[Any]:
        network = {"n_positions": 64, "n_embd": 32, "std": 0.2}
        return [
            served_model(name, model=random_model(**network, seed=seed), **options) for seed, name in enumerate(NAMES)
        ]

    models = Models(load)
    models.load()
    with SocketServer(models, config or ServeConfig()) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SocketServer]:
    with serving(directory=finished_run(tmp_path_factory.mktemp("run"))) as server:
        yield server


def address(server: SocketServer) -> str:
    return f"http://127.0.0.1:{server.port}/"


def wait(browser: Any, condition: str) -> None:
    """Waits until a condition holds in the page."""
    deadline = time.monotonic() + 60
    while not browser.ask(f"Boolean({condition})"):
        assert time.monotonic() < deadline, browser.ask("document.body.innerText")
        time.sleep(0.02)


@pytest.fixture
def opened(browser: Any, server: SocketServer) -> Iterator[Any]:
    """The page with its models, 1280 pixels wide. At the end it has asked no other server and found no errors."""
    browser.visit(address(server), width=1280)
    wait(browser, "document.body.dataset.ready")
    yield browser
    assert browser.errors == []
    assert all(each.startswith((address(server), "about:srcdoc")) for each in browser.requests), browser.requests


def set_value(browser: Any, **values: object) -> None:
    for name, value in values.items():
        browser.ask(f"document.getElementById({name.replace('_', '-', 1)!r}).value = {json.dumps(str(value))}")


def write(browser: Any, prompt: str, **settings: object) -> None:
    """Fills in the page, continues the text, and waits for the end."""
    set_value(browser, prompt=prompt, **{f"setting_{name}": value for name, value in settings.items()})
    browser.ask("document.getElementById('continue').click()")
    finish(browser)


def finish(browser: Any) -> None:
    wait(browser, "document.getElementById('stop').hidden && document.querySelector('.card')")


def texts(browser: Any) -> list[str]:
    """The generated text of each card, without the end of text and the first bytes of a character."""
    found = browser.ask(
        "[...document.querySelectorAll('.card')].map(card => [...card.querySelectorAll('.piece')]"
        ".filter(e => !e.matches('.special, .incomplete')).map(e => e.textContent).join(''))"
    )
    return [str(text) for text in found]


def facts(browser: Any) -> str:
    return str(browser.ask("document.querySelector('.facts').textContent"))


def shown(text: str) -> str:
    """A text as the page shows it: with symbols for control characters."""
    return re.sub("[\x00-\x08\x0b-\x1f]", lambda match: chr(0x2400 + ord(match[0])), text).replace("\x7f", "⟨007F⟩")


def answer(server: SocketServer, **body: Any) -> list[str]:
    """The texts that the server gives to the same request."""
    fields = {"temperature": 0.8, "top_p": 0.95, "context": "slide", "max_tokens": 40, **body}
    request = urllib.request.Request(f"{address(server)}v1/completions", json.dumps(fields).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        return [choice["text"] for choice in json.load(response)["choices"]]


# Writing


def test_the_text_is_the_servers_own_in_whole_characters(opened: Any, server: SocketServer) -> None:
    write(opened, "日本 🙂", seed=5, max_tokens=200)
    (expected,) = answer(server, prompt="日本 🙂", seed=5, max_tokens=200)
    assert texts(opened) == [shown(expected)]
    assert any(len(character.encode()) > 1 for character in expected)  # characters of several tokens
    assert opened.ask("document.querySelector('.given').textContent") == "日本 🙂"
    pieces = opened.ask(f"{PIECES}.length")
    assert pieces < 200
    colors = opened.ask(f"new Set({PIECES}.map(e => e.style.backgroundColor)).size")
    assert colors > 3
    assert re.search(r"seed 5 · \d+ tokens, \d+ tokens/s · (complete|the text ended)", facts(opened))


def test_the_bytes_of_a_character_have_their_alternatives_each(opened: Any) -> None:
    write(opened, "日本 🙂", seed=5, max_tokens=200)
    opened.ask(f"{PIECES}.find(e => /^[\\u3000-\\ud7a3]$/.test(e.textContent)).click()")
    titles = opened.ask("[...document.querySelectorAll('.card .panel h3')].map(e => e.textContent)")
    assert len(titles) == 3
    assert all(f"byte token {number} of 3" in title for number, title in enumerate(titles, 1))


def test_several_samples_of_two_models_have_one_prompt_and_seed(opened: Any, server: SocketServer) -> None:
    set_value(opened, other=NAMES[1])
    write(opened, "Once", seed=8, max_tokens=40, n=2)
    by_model = [answer(server, prompt="Once", seed=8, n=2, model=name) for name in NAMES]
    assert texts(opened) == [shown(text) for pair in zip(*by_model, strict=True) for text in pair]
    titles = opened.ask("[...document.querySelectorAll('.card h2')].map(e => e.textContent)")
    assert titles == [f"Text {number} · {name}" for number in (1, 2) for name in NAMES]
    boxes = opened.ask("[...document.querySelectorAll('.card')].map(e => e.getBoundingClientRect().top)")
    assert boxes[0] == boxes[1] < boxes[2] == boxes[3]  # side by side


def test_a_kept_seed_repeats_a_text(opened: Any) -> None:
    write(opened, "Once", max_tokens=30, min_new_tokens=30, temperature=1)
    (first,) = texts(opened)
    seed = re.findall(r"seed (\d+)", facts(opened))[0]
    write(opened, "Once")
    assert texts(opened) != [first]  # without one it is random
    opened.ask("[...document.querySelectorAll('.card button')].find(e => e.textContent === 'Keep seed').click()")
    kept = opened.ask("document.getElementById('setting-seed').value")
    assert kept != seed
    assert f"seed {kept}" in facts(opened)
    (second,) = texts(opened)
    write(opened, "Once")
    assert texts(opened) == [second]
    opened.ask("[...document.querySelectorAll('.card button')].find(e => e.textContent === 'Write more').click()")
    finish(opened)
    assert f"seed {kept}" in facts(opened)  # the seed that repeats the text from its beginning


def test_the_settings_reach_the_server(opened: Any, server: SocketServer) -> None:
    write(opened, "Once", seed=2, max_tokens=40, temperature=1.5, top_k=4, repetition_penalty=1.3, stop="\n")
    expected = answer(server, prompt="Once", seed=2, temperature=1.5, top_k=4, repetition_penalty=1.3, stop="\n")
    assert texts(opened) == list(map(shown, expected))
    assert opened.ask("document.querySelectorAll('.fields label').length") == 15
    assert opened.ask("[...document.querySelectorAll('.fields label small')].every(e => e.textContent)")
    set_value(opened, setting_temperature="")
    opened.ask("document.getElementById('continue').click()")
    assert opened.ask("document.getElementById('setting-temperature').validity.valid") is False
    assert opened.ask("document.getElementById('stop').hidden") is True


def test_writing_stops_and_the_server_with_it(opened: Any, server: SocketServer) -> None:
    set_value(opened, prompt="Once", setting_max_tokens=10000, setting_min_new_tokens=10000)
    opened.ask("document.getElementById('continue').click()")
    wait(opened, "document.querySelectorAll('.piece').length > 5")
    assert server.n_texts == 1
    opened.ask("document.getElementById('stop').click()")
    finish(opened)
    deadline = time.monotonic() + 60
    while server.n_texts:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "stopped" in facts(opened)
    before = texts(opened)[0]
    set_value(opened, setting_max_tokens=10, setting_min_new_tokens=10)
    opened.ask("[...document.querySelectorAll('.card button')].find(e => e.textContent === 'Write more').click()")
    finish(opened)
    assert texts(opened)[0].startswith(before)
    assert len(texts(opened)[0]) > len(before)


@pytest.fixture
def with_merges(browser: Any) -> Iterator[SocketServer]:
    """The page of a model whose tokens are parts of words, opened in the browser."""
    from serving_texts import TEXTS

    from minigpt.tokenizer.tokenizer import Tokenizer

    tokenizer = Tokenizer.train(TEXTS * 20, "bpe:400")
    model = random_model(vocab_size=tokenizer.vocab_size, n_positions=64, n_embd=32, std=0.2)
    models = Models(lambda: [served_model("bpe", model=model, tokenizer=tokenizer)])
    models.load()
    with SocketServer(models, ServeConfig()) as server:
        browser.visit(address(server))
        wait(browser, "document.body.dataset.ready")
        yield server
        assert browser.errors == []


def test_a_space_at_the_end_of_the_text_is_not_shown_twice(browser: Any, with_merges: SocketServer) -> None:
    write(browser, "Call me ", seed=1, max_tokens=20)
    (expected,) = answer(with_merges, prompt="Call me ", seed=1, max_tokens=20)
    assert texts(browser) == [shown(expected)]


@pytest.mark.parametrize("prompt", ["Call me", "Call me "])
def test_a_text_to_stop_before_is_not_shown_if_it_begins_within_a_token(
    browser: Any, with_merges: SocketServer, prompt: str
) -> None:
    write(browser, prompt, seed=1, max_tokens=20)
    words = browser.ask(f"{PIECES}.map(e => e.textContent)")
    within = next(word for word in words[2:] if re.fullmatch(r" ?[a-z]{2,}", word))
    stop = within[-1] if within[0] != " " else within[1:]
    (expected,) = answer(with_merges, prompt=prompt, seed=1, max_tokens=20, stop=stop)
    write(browser, prompt, seed=1, max_tokens=20, stop=stop)
    assert texts(browser) == [shown(expected)]
    before = browser.ask(f"{PIECES}.length")
    set_value(browser, setting_stop="")
    browser.ask("[...document.querySelectorAll('.card button')].find(e => e.textContent === 'Write more').click()")
    finish(browser)
    assert texts(browser)[0].startswith(shown(expected))
    assert browser.ask(f"{PIECES}[{before - 1}].textContent") in words  # the token that the model continues


def test_a_space_that_the_tokenizer_drops_takes_nothing_from_the_continuation(browser: Any, tmp_path: Path) -> None:
    """Tokenizers without merges are never healed, but a WordPiece prompt lacks its last space when it is decoded."""
    from minigpt.tokenizer.tokenizer import Tokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "fox", "over", "天"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    tokenizer = Tokenizer.load(tmp_path)
    model = random_model(vocab_size=tokenizer.vocab_size, n_positions=64, n_embd=32, std=0.2)
    models = Models(lambda: [served_model("words", model=model, tokenizer=tokenizer)])
    models.load()
    with SocketServer(models, ServeConfig()) as server:
        browser.visit(address(server))
        wait(browser, "document.body.dataset.ready")
        for seed in range(4):
            write(browser, "the fox ", seed=seed, max_tokens=20)
            (expected,) = answer(server, prompt="the fox ", seed=seed, max_tokens=20)
            assert texts(browser) == [re.sub(r"\[[A-Z]+\]", "", expected)]  # the special tokens are labels on the page
        assert browser.errors == []


# Branches


def open_piece(browser: Any, index: int) -> None:
    browser.ask(f"{PIECES}[{index}].click()")


def test_a_token_leads_to_another_branch_and_back(opened: Any) -> None:
    write(opened, "Once", seed=3, max_tokens=30)
    before = opened.ask(f"{PIECES}.map(e => e.textContent)")
    open_piece(opened, 10)
    shares = opened.ask("[...document.querySelectorAll('.choices small')].map(e => parseFloat(e.textContent))")
    assert shares[:10] == sorted(shares[:10], reverse=True)
    label = opened.ask(f"{OTHER}.querySelector('bdi').textContent")
    opened.ask(f"{OTHER}.click()")
    finish(opened)
    after = opened.ask(f"{PIECES}.map(e => e.textContent)")
    assert after[:11] == [*before[:10], label]
    assert opened.ask("document.querySelectorAll('.branches button').length") == 2
    assert opened.ask(f"{PIECES}[10].classList.contains('forked')") is True
    asked = len(opened.requests)
    opened.ask("[...document.querySelectorAll('.card button')].find(e => e.textContent === 'Back').click()")
    assert opened.ask(f"{PIECES}.map(e => e.textContent)") == before
    assert opened.ask(f"{PIECES}.indexOf(document.activeElement)") == 10
    open_piece(opened, 10)
    noted = f"{CHOICES}.filter(e => e.querySelector('small').textContent.startsWith('branch'))"
    assert opened.ask(f"{noted}.length") == 1
    opened.ask(f"{noted}[0].click()")  # the branch is there already
    assert opened.ask(f"{PIECES}.map(e => e.textContent)") == after
    assert len(opened.requests) == asked
    opened.ask("document.querySelector('.branches button').click()")
    assert opened.ask(f"{PIECES}.map(e => e.textContent)") == before
    assert opened.ask("document.querySelector('.branches button').ariaCurrent") == "true"


def test_a_branch_continues_the_exact_tokens(opened: Any, server: SocketServer) -> None:
    write(opened, "Once", seed=3, max_tokens=30)
    text = texts(opened)[0]
    open_piece(opened, 0)
    opened.ask(f"{OTHER}.click()")
    finish(opened)
    branch = texts(opened)[0]
    assert branch[0] != text[0]
    (expected,) = answer(server, prompt=list(f"Once{branch[0]}".encode()), seed=3, max_tokens=30)
    assert branch == branch[0] + shown(expected)


def test_a_text_that_a_setting_ended_can_be_continued(opened: Any, server: SocketServer) -> None:
    (text,) = answer(server, prompt="Once", seed=5, max_tokens=60)
    write(opened, "Once", seed=5, max_tokens=60, stop=next(filter(str.isalnum, text[5:])))
    before = opened.ask(f"{PIECES}.length")
    assert re.search("· complete$", facts(opened))
    set_value(opened, setting_stop="")
    opened.ask("[...document.querySelectorAll('.card button')].find(e => e.textContent === 'Write more').click()")
    finish(opened)
    assert opened.ask(f"{PIECES}.length") > before


def test_a_branch_may_begin_within_a_character(opened: Any, server: SocketServer) -> None:
    write(opened, "日本 🙂", seed=5, max_tokens=60)
    large = f"{PIECES}.find(e => /^[\\u3000-\\ud7a3]$/.test(e.textContent))"
    opened.ask(f"{large}.click()")
    index = opened.ask(f"{PIECES}.indexOf({large})")
    opened.ask(f"{CHOICES}.find(e => e.ariaCurrent).click()")  # its first byte
    finish(opened)
    characters = opened.ask(f"{PIECES}.map(e => e.textContent)")
    assert len(characters[index]) == 1
    assert 0xE0 <= characters[index].encode()[0] < 0xF0  # another character that begins with this byte
    opened.ask("[...document.querySelectorAll('.card button')].find(e => e.textContent === 'Write more').click()")
    finish(opened)
    incomplete = opened.ask(f"{PIECES}.map((e, i) => e.matches('.incomplete') ? i : -1).filter(i => i >= 0)")
    assert incomplete in ([], [opened.ask(f"{PIECES}.length") - 1])


def test_everything_works_by_keys(opened: Any) -> None:
    set_value(opened, setting_max_tokens=20, setting_seed=3)
    opened.ask("document.getElementById('prompt').focus()")
    opened.type("Once")
    opened.press("Enter", control=True)
    finish(opened)
    for _ in range(30):
        if opened.ask("document.activeElement.classList.contains('piece')"):
            break
        opened.press("Tab")
        assert opened.ask("getComputedStyle(document.activeElement).outlineStyle") != "none"
    for _ in range(3):
        opened.press("ArrowRight")
    index = f"{PIECES}.indexOf(document.activeElement)"
    assert opened.ask(index) == 3
    before = texts(opened)
    opened.press("Enter")
    assert opened.ask("document.activeElement.ariaCurrent") == "true"
    opened.press("Escape")
    assert opened.ask(index) == 3
    assert opened.ask("document.querySelector('.card .panel').hidden") is True
    opened.press("Enter")
    opened.press("ArrowRight")
    opened.press("Enter")
    finish(opened)
    assert texts(opened) != before
    assert opened.ask(index) == 3
    opened.press("Backspace")
    assert texts(opened) == before
    opened.ask("document.getElementById('tab-write').focus()")
    opened.press("ArrowRight")
    wait(opened, "document.querySelector('.lens')")
    opened.press("ArrowRight")
    wait(opened, "document.querySelector('iframe')")
    opened.press("ArrowRight")
    assert opened.ask("document.getElementById('write').hidden") is False


def test_in_a_text_from_right_to_left_the_arrow_keys_follow_the_eye(opened: Any) -> None:
    write(opened, "שלום עולם, מה שלומך", seed=1, max_tokens=20)
    assert opened.ask("getComputedStyle(document.querySelector('.reading')).direction") == "rtl"
    opened.ask(f"{PIECES}[0].focus()")
    opened.press("ArrowLeft")
    assert opened.ask(f"{PIECES}.indexOf(document.activeElement)") == 1


def test_copying_gives_the_prompt_and_the_text(opened: Any, server: SocketServer) -> None:
    write(opened, "Once\n", seed=4, max_tokens=40)
    opened.ask(
        "Object.defineProperty(navigator, 'clipboard', { value: { writeText(text) { globalThis.copied = text; } } })"
    )
    opened.ask("[...document.querySelectorAll('.card button')].find(e => e.textContent === 'Copy').click()")
    assert opened.ask("copied") == "Once\n" + answer(server, prompt="Once\n", seed=4)[0]
    opened.ask("[...document.querySelectorAll('.card button')].find(e => e.textContent === 'Edit').click()")
    assert opened.ask("document.getElementById('prompt').value").startswith("Once\n")


# The other tabs


def test_the_inspection_is_that_of_the_text_on_the_screen(opened: Any) -> None:
    set_value(opened, other=NAMES[1])
    write(opened, "Once", seed=3, max_tokens=20)
    opened.ask("document.getElementById('tab-inspect').click()")
    wait(opened, "document.querySelector('.lens')")
    headings = opened.ask("[...document.querySelectorAll('#inspection h2')].map(e => e.textContent)")
    assert headings == ["Text", "Attention", "Logit lens", "Norms"]
    assert "24 tokens" in opened.ask("document.getElementById('inspect-status').textContent")
    assert opened.ask("document.querySelectorAll('button.map').length") == 4
    set_value(opened, inspected=1)
    opened.ask("document.getElementById('inspected').dispatchEvent(new Event('change'))")
    wait(opened, "document.getElementById('inspect-status').textContent.startsWith('<b>other')")
    opened.ask("document.getElementById('theme').click()")
    opened.ask("document.getElementById('tab-write').click()")
    opened.ask("document.getElementById('prompt').value = 'ab'")
    opened.ask("document.getElementById('tab-inspect').click()")
    set_value(opened, inspected="prompt")
    opened.ask("document.getElementById('inspected').dispatchEvent(new Event('change'))")
    wait(opened, "/ 2 tokens/.test(document.getElementById('inspect-status').textContent)")


def test_the_report_runs_in_a_frame_without_rights(opened: Any) -> None:
    opened.ask("document.getElementById('tab-report').click()")
    wait(opened, "document.querySelector('iframe')")
    assert opened.ask("document.querySelector('iframe').sandbox.value") == "allow-scripts"
    assert opened.ask("document.querySelector('iframe').contentDocument") is None
    # With the right to be read, a copy of the frame shows that the policy of the page lets the report's scripts run.
    opened.ask(
        "(() => { const f = document.querySelector('iframe'), copy = f.cloneNode();"
        " copy.sandbox = 'allow-scripts allow-same-origin'; f.replaceWith(copy); })()"
    )
    wait(opened, "document.querySelector('iframe').contentDocument?.querySelector('h1')?.textContent === 'fox'")
    wait(opened, "document.querySelector('iframe').contentDocument.querySelector('svg.chart')")
    assert ["can escape its sandboxing" in error for error in opened.errors] == [True]  # what this test has done
    opened.errors.clear()


def test_a_model_without_a_report_gets_a_sentence(browser: Any) -> None:
    with serving() as server:
        browser.visit(address(server))
        wait(browser, "document.body.dataset.ready")
        browser.ask("document.getElementById('tab-report').click()")
        wait(browser, "/no record of a training run/.test(document.getElementById('report-status').textContent)")


# Safety


def test_the_key_is_asked_for_and_kept_in_memory_only(browser: Any) -> None:
    with serving(ServeConfig(api_key="open sesame")) as server:
        browser.visit(address(server))
        wait(browser, "!document.getElementById('key-form').hidden")
        assert browser.ask("document.activeElement.id") == "key"
        for key, condition in (("wrong", "/refuses/.test(document.getElementById('key-note').textContent)"),
                               ("open sesame", "document.body.dataset.ready")):  # fmt: skip
            set_value(browser, key=key)
            browser.press("Enter")
            wait(browser, condition)
        write(browser, "Once", max_tokens=5)
        assert len(texts(browser)) == 1
        assert browser.ask("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]


def test_script_like_text_is_text(opened: Any) -> None:
    set_value(opened, other=NAMES[1])
    write(opened, HOSTILE, seed=1, max_tokens=5)
    assert opened.ask("document.querySelector('.given').textContent") == HOSTILE
    assert opened.ask("document.querySelector('.given').childElementCount") == 0
    for tab in ("inspect", "report"):
        opened.ask(f"document.getElementById('tab-{tab}').click()")
        wait(opened, {"inspect": "document.querySelector('.lens')", "report": "document.querySelector('iframe')"}[tab])
    assert opened.ask("document.querySelectorAll('b').length") == 0
    assert opened.ask("document.querySelectorAll('body > script:not([id])').length") == 14


def test_the_policy_refuses_other_scripts_and_other_servers(browser: Any, server: SocketServer) -> None:
    browser.visit(address(server))
    wait(browser, "document.body.dataset.ready")
    browser.ask(
        "globalThis.refused = []; document.addEventListener('securitypolicyviolation',"
        " e => refused.push(e.effectiveDirective))"
    )
    browser.ask(
        "(() => { const s = document.createElement('script'); s.textContent = 'globalThis.ran = 1';"
        " document.body.append(s); const i = document.createElement('img'); i.src = 'http://127.0.0.1:9/x';"
        " document.body.append(i); const d = document.createElement('div'); document.body.append(d);"
        " d.setAttribute('style', 'color: red'); })()"
    )
    assert browser.ask("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    found = set(browser.ask("refused"))
    assert found == {"script-src-elem", "img-src", "connect-src", "style-src-attr"}
    assert browser.ask("globalThis.ran") is None


def test_errors_of_the_server_are_shown(opened: Any) -> None:
    set_value(opened, setting_stop="x" * 3, setting_max_tokens=10000, setting_n=8, prompt="x" * 200_000)
    opened.ask("document.getElementById('continue').click()")
    finish(opened)
    assert "tokens in one request are more than" in opened.ask("document.querySelector('.error').textContent")
    opened.errors.clear()  # the browser notes the status 400


def test_texts_stay_if_no_further_text_can_be_written(opened: Any) -> None:
    set_value(opened, other=NAMES[1])
    write(opened, "Once", max_tokens=20, n=2)
    before = texts(opened)
    opened.ask(f"{PIECES}[1].click()")
    write(opened, "x" * 200_000, max_tokens=10_000, n=8)
    wait(opened, "document.getElementById('status').textContent.includes('tokens in one request are more than')")
    assert texts(opened) == before
    assert opened.ask("[...document.querySelectorAll('.error')].map(e => e.textContent).join('')") == ""
    assert opened.ask(f"{CHOICES}.length") > 0  # the panel that was open still is
    opened.errors.clear()  # the browser notes the status 400
    write(opened, "Once", max_tokens=20, n=1)
    assert len(texts(opened)) == 2


# Layout


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_the_window(browser: Any, server: SocketServer, width: int) -> None:
    browser.visit(address(server), width=width, height=844)
    wait(browser, "document.body.dataset.ready")
    overflow: Callable[[], int] = lambda: int(browser.ask("document.documentElement.scrollWidth")) - width  # noqa: E731
    browser.ask("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    set_value(browser, other=NAMES[1])
    write(browser, "averylongwordwithoutanyspace" * 10, seed=3, max_tokens=60, n=2)
    open_piece(browser, 20)
    browser.ask(f"{CHOICES}.find(e => !e.ariaCurrent).click()")
    finish(browser)
    open_piece(browser, 21)
    assert overflow() <= 0
    for tab in ("inspect", "report"):
        browser.ask(f"document.getElementById('tab-{tab}').click()")
        wait(browser, {"inspect": "document.querySelector('.lens')", "report": "document.querySelector('iframe')"}[tab])
        assert overflow() <= 0
    small = browser.ask(
        "[...document.querySelectorAll('#write button, #write input, #write select')].filter(e => e.checkVisibility())"
        ".filter(e => e.getBoundingClientRect().height < 24).length"
    )
    assert small == 0
    assert browser.errors == []
