"""An exported model in a real browser, opened as a file: it writes what minigpt writes, and takes mouse and keys."""

import contextlib
import re
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model
from firefox import Firefox, find_firefox

from minigpt.config import SamplingConfig
from minigpt.exporters.html.page import PageText, read_page, write_page
from minigpt.generation.streaming import generate_pieces
from minigpt.native import compiled
from minigpt.native.engine import NativeEngine
from minigpt.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="the C code is not compiled")

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
    browser.ask("document.getElementById('continue').click()")
    finish(browser)
    return pieces(browser)


def finish(browser: Any) -> None:
    wait(browser, "document.getElementById('stop').hidden && document.querySelector('.card')")


def pieces(browser: Any) -> list[str]:
    """The whole characters that tokens wrote."""
    whole = "[...document.querySelectorAll('.piece')].filter(e => !e.matches('.incomplete')).map(e => e.textContent)"
    return [str(text) for text in browser.ask(whole)]


def count(browser: Any) -> int:
    """How many tokens the text has."""
    return int(browser.ask("document.querySelector('.facts').textContent.match(/(\\d+) tokens/)[1]"))


def shown(text: str) -> str:
    """A text as the page shows it: with symbols for control characters and for those that reorder a text."""

    def symbol(character: str) -> str:
        is_harmless = character in "\n\t\u200c\u200d\u200e\u200f\u061c"
        if is_harmless or unicodedata.category(character) not in ("Cc", "Cf", "Zl", "Zp"):
            return character
        return chr(0x2400 + ord(character)) if character < " " else f"⟨{ord(character):04X}⟩"

    return "".join(map(symbol, text))


def raw_text(prompt: str, **settings: Any) -> str:
    """The text that `minigpt generate --quantize int8` writes after a prompt."""
    config = SamplingConfig(max_new_tokens=200, **settings)
    found = generate_pieces(NativeEngine(MODEL, "int8"), Tokenizer.named("bytes"), [prompt], config)
    return "".join(piece.text for piece in found)


def written_by_generate(prompt: str, **settings: Any) -> str:
    """The same, as the page shows it."""
    return shown(raw_text(prompt, **settings))


@pytest.mark.parametrize("prompt", ["日本 🙂", "It is a "])
def test_texts_beyond_the_context_are_those_of_generate_without_a_network(opened: Any, prompt: str) -> None:
    opened.go_offline()
    opened.ask(f"document.getElementById('prompt').value = {prompt!r}")
    greedy = write(opened, temperature="0", count="200")
    assert "".join(greedy) == written_by_generate(prompt, temperature=0)
    assert len(set("".join(greedy))) > 5
    seeded = write(opened, temperature="0.8", seed="11")
    assert "".join(seeded) == written_by_generate(prompt, temperature=0.8, top_p=0.95, seed=11)
    assert "seed 11 · 200 tokens" in opened.ask("document.querySelector('.facts').textContent")


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
    frame("document.getElementById('continue').click()")
    for _ in range(200):
        if frame("document.getElementById('stop').hidden"):
            break
        time.sleep(0.05)
    text = frame("[...document.querySelectorAll('.piece:not(.incomplete)')].map(e => e.textContent).join('')")
    assert text == written_by_generate("日本 🙂", temperature=0)
    assert browser.errors == []


def test_hostile_texts_are_shown_as_they_are(opened: Any) -> None:
    assert opened.ask("[document.title, document.querySelector('h1').textContent]") == [HOSTILE] * 2
    assert opened.ask("document.getElementById('note').textContent") == HOSTILE
    assert opened.ask("document.getElementById('prompt').value") == "日本 🙂"
    prompt = "</script><b>x & more"
    opened.ask(f"document.getElementById('prompt').value = {prompt!r}")
    write(opened, temperature="0", count="1")
    assert opened.ask("document.querySelector('.given').textContent") == prompt
    assert opened.ask("document.querySelectorAll('.reading b').length") == 0


def test_an_alternative_of_a_token_starts_another_text_from_it(opened: Any) -> None:
    before = write(opened, temperature="0", count="12")
    opened.ask("document.querySelectorAll('.piece')[4].click()")
    of_first = "[...document.querySelector('.choices').querySelectorAll('button')]"
    shares = opened.ask(f"{of_first}.map(e => parseFloat(e.querySelector('small').textContent))")
    assert len(shares) == 10
    assert shares == sorted(shares, reverse=True)
    # Greedy: the chosen token is the most likely of those that can be chosen, and no other is listed.
    assert opened.ask(f"{of_first}.map(e => e.ariaCurrent)") == ["true"] + [None] * 9
    opened.ask(f"{of_first}[2].click()")
    finish(opened)
    assert opened.ask("document.querySelectorAll('.branches li').length") == 2
    assert pieces(opened)[:4] == before[:4]
    assert pieces(opened)[4] != before[4]
    opened.ask(
        "[...document.querySelectorAll('.tools button, .buttons button')].find(e => e.textContent === 'Back').click()"
    )
    assert pieces(opened) == before


def test_every_alternative_keeps_the_text_in_whole_characters(opened: Any) -> None:
    write(opened, temperature="1.5", topP="1", count="60", seed="5")
    several = (
        "[...document.querySelectorAll('.piece')].findIndex(e => new TextEncoder().encode(e.textContent).length === 2)"
    )
    assert opened.ask(f"{several} >= 0")  # a character of two tokens
    opened.ask(f"document.querySelectorAll('.piece')[{several}].click()")
    first, second = opened.ask(
        "[...document.querySelectorAll('.choices')].map(e => [...e.querySelectorAll('bdi')].map(e => e.textContent))"
    )
    assert not [label for label in first if re.fullmatch("⟨[89ab].⟩", label)]  # no character begins with these bytes
    assert all(re.fullmatch("⟨[89ab].⟩", label) for label in second)


def open_attention(browser: Any, number: int) -> None:
    browser.ask(f"document.querySelectorAll('.piece')[{number}].click()")
    wait(browser, "document.querySelector('.attending')")


def attended(browser: Any) -> tuple[int, dict[int, float]]:
    """The token whose attention is shown, by its number, and the weights that are named, by the tokens' numbers."""
    readout = browser.ask("document.querySelector('.attending .readout').textContent")
    number = int(re.search(r"\((\d+)\) attends most to ", readout)[1])  # type: ignore[index]
    found = re.findall(r"\((\d+)\) with weight (\d\.\d+)", readout)
    assert len(found) == min(5, number + 1)
    return number, {int(place): float(weight) for place, weight in found}


def expected_attention(page: Path, text: str, number: int) -> torch.Tensor:
    """The weights of a text's token by PyTorch, from the page's own weights: (L, H, T)."""
    model, _ = read_page(page)
    ids = torch.tensor([list(text.encode()[: number + 1])])
    with torch.no_grad():
        return torch.cat([layer[:, :, -1] for layer in model.attention_weights(ids)])


def is_close(named: dict[int, float], weights: torch.Tensor) -> bool:
    """Whether weights are those of PyTorch, which does not round activations to int8, and the largest among them."""
    return all(abs(weights[place] - weight) < 0.055 for place, weight in named.items()) and (
        max(named.values()) > weights.max() - 0.055
    )


def test_the_attention_of_a_token_is_that_of_pytorch_for_each_head_and_their_mean(opened: Any, page: Path) -> None:
    opened.ask("document.getElementById('prompt').value = 'abc'")
    text = "abc" + raw_text("abc", temperature=0)
    write(opened, temperature="0", count="9")
    open_attention(opened, 2)
    number, _ = attended(opened)
    weights = expected_attention(page, text, number)
    layers, heads, _ = weights.shape
    assert number > 4
    assert opened.ask("document.querySelectorAll('.attending .map').length") == layers * heads
    for head in [None, *[(layer, head) for layer in range(layers) for head in range(heads)]]:
        own = weights.mean(dim=(0, 1)) if head is None else weights[head]
        name = ".mean" if head is None else f'[aria-label="layer {head[0]}, head {head[1]}"]'
        opened.ask(f"document.querySelector('.attending {name}').click()")
        assert is_close(attended(opened)[1], own), head
        assert opened.ask("document.querySelector('.attending h3').textContent").endswith(
            ", mean of all heads" if head is None else f", layer {head[0]}, head {head[1]}"
        )


def test_arrow_keys_choose_a_head_and_the_next_token_keeps_it(opened: Any) -> None:
    write(opened, temperature="0", count="9")
    open_attention(opened, 3)
    opened.ask("document.querySelector('.attending .map').focus()")
    opened.press("ArrowRight")
    opened.press("ArrowDown")
    title = "document.querySelector('.attending h3').textContent"
    assert opened.ask(title).endswith(", layer 1, head 1")
    pressed = "[...document.querySelectorAll('.attending [aria-pressed=true]')].map(e => e.ariaLabel)"
    assert opened.ask(pressed) == ["layer 1, head 1"]
    open_attention(opened, 4)
    assert opened.ask(title).endswith(", layer 1, head 1")


def test_attention_in_a_window_that_the_text_has_left_is_read_again_and_the_text_goes_on_as_before(
    opened: Any, page: Path
) -> None:
    opened.ask("document.getElementById('prompt').value = 'abc'")
    whole = raw_text("abc", temperature=0)
    write(opened, temperature="0", count="60")
    open_attention(opened, 5)  # the window has 32 tokens, and has moved
    number, named = attended(opened)
    assert is_close(named, expected_attention(page, "abc" + whole, number).mean(dim=(0, 1)))
    opened.ask("[...document.querySelectorAll('.buttons button')].find(e => e.textContent === 'Write more').click()")
    finish(opened)
    assert shown(whole).startswith("".join(pieces(opened)))
    open_attention(opened, len(pieces(opened)) - 1)
    assert "tokens outside the context" in opened.ask("document.querySelector('.attending .strip').textContent")


def test_a_large_model_says_where_its_attention_is_shown(browser: Any, page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    assert '"showsAttention":true' in content
    page.write_text(content.replace('"showsAttention":true', '"showsAttention":false'), encoding="utf-8")
    browser.open(page)
    wait(browser, "document.body.dataset.ready")
    write(browser, temperature="0", count="3")
    browser.ask("document.querySelector('.piece').click()")
    assert "minigpt inspect" in browser.ask("document.querySelector('.card .panel').textContent")
    assert browser.ask("document.querySelector('.attending')") is None


def test_writing_stops_at_once_and_goes_on(opened: Any) -> None:
    opened.ask("document.getElementById('prompt').value = 'hello'")  # the model ends this text after 2,903 tokens
    opened.ask("document.getElementById('setting-temperature').value = '0'")
    opened.ask("document.getElementById('setting-count').value = '50000'")
    # The page itself presses the button: from here, on a slow connection, the text could end first.
    opened.ask(
        """new MutationObserver((_, observer) => {
            if (document.querySelectorAll('.piece').length <= 3) return
            observer.disconnect()
            document.getElementById('stop').click()
        }).observe(document.body, { childList: true, subtree: true })"""
    )
    opened.ask("document.getElementById('continue').click()")
    finish(opened)
    before = count(opened)
    assert 3 < before < 2903
    opened.ask("document.getElementById('setting-count').value = '7'")
    opened.ask("[...document.querySelectorAll('.buttons button')].find(e => e.textContent === 'Write more').click()")
    finish(opened)
    assert count(opened) == before + 7


def test_a_stop_after_the_end_does_not_stop_the_next_text(opened: Any) -> None:
    write(opened, temperature="0", count="7")
    opened.ask("document.getElementById('stop').click()")
    opened.ask("[...document.querySelectorAll('.buttons button')].find(e => e.textContent === 'Write more').click()")
    finish(opened)
    assert count(opened) == 14


def test_without_webassembly_the_page_computes_in_javascript_and_says_so(browser: Any, page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    assert 'id="engine">' in content
    page.write_text(content.replace('id="engine">', 'id="engine">delete globalThis.WebAssembly;'), encoding="utf-8")
    browser.open(page)
    wait(browser, "document.body.dataset.ready")
    assert "plain JavaScript" in browser.ask("document.getElementById('status').textContent")
    written = "".join(write(browser, temperature="0", count="20"))
    assert len(written) > 6
    assert written_by_generate("日本 🙂", temperature=0).startswith(written)


def test_a_page_whose_scripts_do_not_run_says_what_it_needs(browser: Any, page: Path) -> None:
    needs = "document.body.innerText"
    browser.open(page)
    assert "needs JavaScript" not in browser.ask(needs)
    content = page.read_text(encoding="utf-8")
    page.write_text(content.replace("; script-src ", "; unknown ", 1), encoding="utf-8")  # so that none may run
    browser.open(page)
    assert "needs JavaScript, and a browser from 2024 or later" in browser.ask(needs)


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
    path.write_text(content.replace("<body>", f"<body><script>delete globalThis.{removed}</script>"), encoding="utf-8")
    browser.open(path)
    assert message in browser.ask("document.getElementById('status').textContent")
