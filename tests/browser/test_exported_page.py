"""An exported model in a real browser, opened as a file: it writes what minigpt writes, and takes mouse and keys."""

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from builders import new_model
from firefox import Firefox, find_firefox

from minigpt.config import SamplingConfig
from minigpt.exporters.html.page import PageText, write_page
from minigpt.generation.engines import native
from minigpt.generation.engines.native import NativeEngine
from minigpt.generation.streaming import generate_pieces
from minigpt.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(native.library() is None, reason="decode.c is not compiled")

HOSTILE = "A <model> </script>\u2028\"'"
MODEL = new_model(scale=10, vocab_size=257, n_positions=32, n_embd=64, n_head=4)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The file of the page."""
    path = tmp_path / "page.html"
    with path.open("wb") as file:
        write_page(file, MODEL, Tokenizer.named("bytes"), PageText(title=HOSTILE, note=HOSTILE, prompt="日本 🙂"))
    return path


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    """The page, ready to write."""
    browser.open(page, width=390, height=844)
    wait(browser, "document.body.dataset.ready")
    yield browser
    browser.go_offline(False)
    assert browser.errors == []
    assert [address for address in browser.requests if not address.startswith("blob:")] == [page.as_uri()]


def wait(browser: Any, condition: str) -> None:
    """Waits until a condition holds in the page."""
    for _ in range(600):
        if browser.ask(f"Boolean({condition})"):
            return
        time.sleep(0.05)
    raise AssertionError(browser.ask("document.body.innerText"))


def write(browser: Any, **settings: str) -> list[str]:
    """Fills in the settings, writes, and returns the texts of the tokens."""
    for name, value in settings.items():
        browser.ask(f"document.getElementById('setting-{name}').value = {value!r}")
    browser.ask("document.getElementById('write').click()")
    wait(browser, "!document.getElementById('more').hidden")
    return tokens(browser)


def tokens(browser: Any) -> list[str]:
    return [str(text) for text in browser.ask("[...document.querySelectorAll('.token')].map(e => e.textContent)")]


def written_by_generate(prompt: str, **settings: Any) -> str:
    """The text that `minigpt generate --quantize int8` writes after a prompt."""
    config = SamplingConfig(max_new_tokens=200, **settings)
    pieces = generate_pieces(NativeEngine(MODEL, "int8"), Tokenizer.named("bytes"), [prompt], config)
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("prompt", ["日本 🙂", "It is a "])
def test_texts_beyond_the_context_are_those_of_generate_without_a_network(opened: Any, prompt: str) -> None:
    opened.go_offline()
    opened.ask(f"document.getElementById('prompt').value = {prompt!r}")
    greedy = write(opened, temperature="0", count="200")
    assert "".join(greedy) == written_by_generate(prompt, temperature=0)
    assert len(set("".join(greedy))) > 5
    seeded = write(opened, temperature="0.8", seed="11")
    assert "".join(seeded) == written_by_generate(prompt, temperature=0.8, top_p=0.95, seed=11)
    assert "seed 11" in opened.ask("document.getElementById('status').textContent")


def test_firefox_writes_the_same_texts(page: Path, tmp_path: Path) -> None:
    program = find_firefox()
    if program is None:
        pytest.skip("no Firefox on the PATH")
    with contextlib.closing(Firefox(program, tmp_path / "profile")) as firefox:
        firefox.open(page)
        wait(firefox, "document.body.dataset.ready")
        greedy = write(firefox, temperature="0", count="200")
        assert "".join(greedy) == written_by_generate("日本 🙂", temperature=0)
        seeded = write(firefox, temperature="0.8", seed="11")
        assert "".join(seeded) == written_by_generate("日本 🙂", temperature=0.8, top_p=0.95, seed=11)
        assert firefox.errors == []


def test_a_page_writes_in_an_iframe_of_another_page(browser: Any, page: Path) -> None:
    outer = page.with_name("outer.html")
    outer.write_text(f'<!doctype html><iframe src="{page.name}" width="600" height="700"></iframe>', encoding="utf-8")
    browser.open(outer)
    frame = browser.frame()
    for _ in range(200):
        if frame("document.body.dataset.ready"):
            break
        time.sleep(0.05)
    frame("document.getElementById('setting-temperature').value = '0'")
    frame("document.getElementById('write').click()")
    for _ in range(200):
        if frame("!document.getElementById('more').hidden"):
            break
        time.sleep(0.05)
    text = frame("[...document.querySelectorAll('.token')].map(e => e.textContent).join('')")
    assert text == written_by_generate("日本 🙂", temperature=0)
    assert browser.errors == []


def test_hostile_texts_are_shown_as_they_are(opened: Any) -> None:
    assert opened.ask("[document.title, document.querySelector('h1').textContent]") == [HOSTILE] * 2
    assert opened.ask("document.getElementById('prompt').value") == "日本 🙂"
    prompt = "</script><b>x\u2028 & more"
    opened.ask(f"document.getElementById('prompt').value = {prompt!r}")
    write(opened, temperature="0", count="1")
    assert opened.ask("document.getElementById('text').firstChild.data") == prompt
    assert opened.ask("document.querySelectorAll('#text b').length") == 0


def test_an_alternative_of_a_token_starts_another_text_from_it(opened: Any) -> None:
    before = write(opened, temperature="0", count="12")
    opened.ask("document.querySelectorAll('.token')[4].click()")
    shares = opened.ask("[...document.querySelectorAll('#token li small')].map(e => parseFloat(e.textContent))")
    assert len(shares) == 8
    assert shares == sorted(shares, reverse=True)
    current = opened.ask("[...document.querySelectorAll('#token button')].map(e => e.hasAttribute('aria-current'))")
    assert current.count(True) == 1  # more likely ones would break a character
    opened.ask("document.querySelectorAll('#token button')[2].click()")
    wait(opened, "!document.getElementById('more').hidden")
    after = tokens(opened)
    assert after[:4] == before[:4]
    assert after[4] != before[4]
    assert len(after) == 17  # 12 more after the chosen one


def test_keys_move_between_tokens_and_open_their_alternatives(opened: Any) -> None:
    write(opened, temperature="0", count="5")
    opened.ask("document.querySelector('.token').focus()")
    index = "[...document.querySelectorAll('.token')].indexOf(document.activeElement)"
    opened.press("ArrowRight")
    opened.press("ArrowRight")
    assert opened.ask(index) == 2
    opened.press("End")
    assert opened.ask(index) == 4
    opened.press("Enter")
    assert opened.ask("document.getElementById('token').hidden") is False
    labels = opened.ask("[...document.querySelectorAll('.token')].map(e => e.getAttribute('aria-label'))")
    assert all("probability" in label for label in labels)


def test_writing_stops_at_once_and_goes_on(opened: Any) -> None:
    opened.ask("document.getElementById('setting-temperature').value = '0'")
    opened.ask("document.getElementById('setting-count').value = '50000'")
    opened.ask("document.getElementById('write').click()")
    wait(opened, "document.querySelectorAll('.token').length > 3")
    opened.ask("document.getElementById('stop').click()")
    wait(opened, "!document.getElementById('more').hidden")
    count = len(tokens(opened))
    assert count < 50000
    opened.ask("document.getElementById('setting-count').value = '7'")
    opened.ask("document.getElementById('more').click()")
    wait(opened, "!document.getElementById('more').hidden")
    assert len(tokens(opened)) == count + 7


def test_a_stop_after_the_end_does_not_stop_the_next_text(opened: Any) -> None:
    write(opened, temperature="0", count="7")
    opened.ask("(document.getElementById('stop').click(), document.getElementById('more').click())")
    wait(opened, "!document.getElementById('more').hidden")
    assert len(tokens(opened)) == 14


def test_the_page_fits_a_narrow_window(opened: Any) -> None:
    write(opened, temperature="1", seed="3", count="100")
    opened.ask("[...document.querySelectorAll('.token')].at(-1).click()")
    assert opened.ask("document.documentElement.scrollWidth") == 390


def test_without_webassembly_the_page_computes_in_javascript_and_says_so(browser: Any, page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    assert 'id="engine">' in content
    page.write_text(content.replace('id="engine">', 'id="engine">delete globalThis.WebAssembly;'), encoding="utf-8")
    browser.open(page)
    wait(browser, "document.body.dataset.ready")
    assert "plain JavaScript" in browser.ask("document.getElementById('status').textContent")
    written = "".join(write(browser, temperature="0", count="20"))  # tokens of one byte
    assert len(written) > 6
    assert written_by_generate("日本 🙂", temperature=0).startswith(written)


@pytest.mark.parametrize(
    ("removed", "message"), [("DecompressionStream", "lacks DecompressionStream"), ("Worker", "run a worker")]
)
def test_a_browser_that_lacks_something_gets_a_sentence(
    browser: Any, tmp_path: Path, removed: str, message: str
) -> None:
    path = tmp_path / "page.html"
    with path.open("wb") as file:
        write_page(file, MODEL, Tokenizer.named("bytes"), PageText(title="x"))
    # The policy of the page forbids other scripts, so that the test takes the policy away.
    content = path.read_text(encoding="utf-8").replace("Content-Security-Policy", "x")
    path.write_text(content.replace("<main>", f"<script>delete globalThis.{removed}</script><main>"), encoding="utf-8")
    browser.open(path)
    assert message in browser.ask("document.getElementById('status').textContent")
