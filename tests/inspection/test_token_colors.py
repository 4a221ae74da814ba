"""Tokens colored by their probability, in a terminal with colors and without."""

import math
import re

import pytest
from consoles import color_console, plain_console, printed
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from minigpt.inspection.token_colors import CharacterDecoder, TokenPainter, paint_tokens, percent
from minigpt.tokenizer.tokenizer import Tokenizer

TOKENIZERS = {name: Tokenizer.named(name) for name in ("bytes", "gpt2")}


def test_a_less_likely_token_has_a_stronger_background_and_an_unpredicted_one_has_none() -> None:
    out = color_console()
    painter = TokenPainter(out)
    for logprob in (0.0, -1.0, -3.0, -5.0, -20.0):
        painter.add("x", logprob)
    painter.add("x", None)
    painter.end()
    backgrounds = re.findall(r"48;2;(\d+);(\d+);(\d+)mx", printed(out))
    reds = [int(red) - int(blue) for red, _, blue in backgrounds]
    assert len(reds) == 5
    assert reds == sorted(reds)
    assert reds[0] < 0 < reds[-1]


def test_the_legend_says_which_color_is_unlikely() -> None:
    out = color_console()
    painter = TokenPainter(out)
    painter.legend()
    legend = " 100%  50%  25%  13%  3.1%  0.78%  ≤0.10%   probability; strong: unlikely"
    assert printed(out, styles=False).rstrip("\n") == legend


def test_a_terminal_without_colors_gets_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = color_console()
    painter = TokenPainter(out)
    painter.add("x", -2.0)
    painter.end()
    painter.legend()
    assert printed(out).splitlines() == [
        "x",
        "3",
        "below each token: its surprisal in bits, · under ½, + over 9",
    ]


@settings(deadline=None, max_examples=80)
@given(st.text(max_size=60), st.sampled_from(sorted(TOKENIZERS)), st.integers(4, 40))
def test_every_character_is_shown_once_and_no_control_character_reaches_the_terminal(
    text: str, name: str, width: int
) -> None:
    text = text.encode(errors="replace").decode()
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    for out in (color_console(width), plain_console(width)):
        painter = TokenPainter(out)
        paint_tokens(painter, tokenizer, ids, [None, *[-1.0] * (len(ids) - 1)] if ids else [])
        shown = printed(out, styles=False)
        assert not any(
            (ord(c) < 0x20 and c != "\n") or 0x7F <= ord(c) < 0xA0 or 0x202A <= ord(c) <= 0x202E for c in shown
        )
        if painter.has_colors:
            assert shown.count("↵") == text.count("\n") + text.count("↵")
            plain = [c for c in text if ord(c) >= 0x20 and c.isalnum()]
            assert [c for c in shown if c in plain] == [c for c in plain if c in shown]
            assert all(c in shown for c in plain)
        else:
            assert all(cell_len(line) <= max(width, 6) for line in shown.splitlines())


def test_a_character_of_several_tokens_has_the_sum_of_their_log_probabilities() -> None:
    tokenizer = Tokenizer.named("bytes")
    decoder = CharacterDecoder(tokenizer)
    fed = [decoder.feed(id, logprob) for id, logprob in zip("a日".encode(), (-1.0, -2.0, -3.0, -4.0), strict=True)]
    assert fed == [("a", -1.0), ("", None), ("", None), ("日", -9.0)]
    decoder.feed(0xE6, -5.0)
    assert decoder.flush() == ("\ufffd", -5.0)


def test_marks_are_aligned_below_wide_characters_and_after_line_breaks() -> None:
    out = plain_console(8)
    painter = TokenPainter(out)
    for text, bits in [("日本", 3), ("x", 4), ("abcd", 12), ("\n", 0), ("y", 1)]:
        painter.add(text, -bits * math.log(2))
    painter.end()
    assert printed(out).splitlines() == ["日本xabc", "3   4+", "d↵", " ·", "y", "1"]


def test_percentages_have_two_significant_digits() -> None:
    shares = [1, 0.995, 0.5, 0.0996, 0.0234, 0.004, 0.00004]
    assert [percent(math.log(share)) for share in shares] == [
        "100%", "100%", "50%", "10%", "2.3%", "0.40%", "<0.01%"
    ]  # fmt: skip
