"""An exported model in a real browser, opened as a file: it writes what minigpt writes, and takes mouse and keys."""

import time
from pathlib import Path
from typing import Any

import pytest
from builders import new_model

from minigpt.config import SamplingConfig
from minigpt.exporters.html.page import PageText, write_page
from minigpt.generation.decoding import Decoder
from minigpt.generation.engines import native
from minigpt.generation.engines.native import NativeEngine
from minigpt.generation.sampling import Sampler
from minigpt.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(native.library() is None, reason="decode.c is not compiled")

HOSTILE = "A <model> </script>\u2028\"'"
MODEL = new_model(scale=10, vocab_size=257, n_positions=32, n_embd=64, n_head=4)


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Any:
    """The page, ready to write."""
    path = tmp_path / "page.html"
    with path.open("wb") as file:
        write_page(file, MODEL, Tokenizer.named("bytes"), PageText(title=HOSTILE, note=HOSTILE, prompt="日本 🙂"))
    browser.open(path, width=390, height=844)
    wait(browser, "document.body.dataset.ready")
    yield browser
    assert browser.errors == []
    assert [address for address in browser.requests if not address.startswith("blob:")] == [path.as_uri()]


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


def expected(config: SamplingConfig, count: int) -> list[int]:
    tokenizer = Tokenizer.named("bytes")
    sampler = Sampler(config)
    decoder = Decoder(NativeEngine(MODEL, "int8"), [tokenizer.encode("日本 🙂")], sampler, vocab_size=257)
    return [decoder.advance()[0][0].id for _ in range(count)]


def same_start(found: str, ids: list[int]) -> int:
    """How many characters are those of the text of these ids."""
    text = Tokenizer.named("bytes").decode(ids)
    return next((i for i, pair in enumerate(zip(found, text, strict=False)) if pair[0] != pair[1]), len(found))


def test_a_greedy_text_beyond_the_context_and_a_seeded_one_are_those_of_generate(opened: Any) -> None:
    greedy = write(opened, temperature="0", count="60")
    assert len(greedy) == 60
    # Rounding may exchange two nearly equal choices; from then on the texts differ.
    assert same_start("".join(greedy), expected(SamplingConfig(temperature=0), 60)) >= 20
    seeded = write(opened, temperature="0.8", seed="11", count="60")
    config = SamplingConfig(temperature=0.8, top_p=0.95, seed=11)
    assert same_start("".join(seeded), expected(config, 60)) >= 20
    assert write(opened, temperature="0.8", seed="11", count="60") == seeded
    assert "seed 11" in opened.ask("document.getElementById('status').textContent")


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
    assert current == [True] + [False] * 7  # greedy: the most likely one was chosen
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


def test_the_page_fits_a_narrow_window(opened: Any) -> None:
    write(opened, temperature="1", seed="3", count="100")
    opened.ask("[...document.querySelectorAll('.token')].at(-1).click()")
    assert opened.ask("document.documentElement.scrollWidth") == 390


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
