"""The colors: orange for unlikely tokens, in pages and terminals alike, and cividis for attention weights."""

import itertools
import math
import re

import numpy as np
import pytest
from rich.color import Color
from rich.console import Console

from minigpt.inspection.colors import TERMINAL_256, mode, strength, surprisal_bits, tint
from minigpt.inspection.token_colors import background
from minigpt.pages.document import CIVIDIS, read_asset


def test_the_scale_of_attention_weights_is_cividis() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    for step, found in enumerate(CIVIDIS):
        theirs = [255 * part for part in matplotlib.colormaps["cividis"](step / 10)[:3]]
        assert max(abs(a - b) for a, b in zip(bytes.fromhex(found), theirs, strict=True)) <= 1, step


def test_each_bit_of_surprisal_is_a_tenth_stronger() -> None:
    assert [strength(nats) for nats in (0.0, -np.log(2), -50, -math.inf)] == pytest.approx([0, 0.1, 1, 1])
    assert surprisal_bits(-0.0) == 0
    assert str(surprisal_bits(0.0)) == "0.0"


@pytest.mark.parametrize(("name", "place"), [("light", 0), ("dark", 1)])
def test_the_terminals_colors_are_those_of_the_pages(name: str, place: int) -> None:
    styles = read_asset("minigpt.pages", "palette.css")
    plain, strong = (
        bytes.fromhex(re.findall(rf"--{each}: light-dark\(#(\w+), #(\w+)\)", styles)[0][place])
        for each in ("background", "unlikely")
    )
    assert tint(0, name) == tuple(plain)
    assert "--strongest: 70%" in styles
    assert tint(1, name) == pytest.approx([0.7 * a + 0.3 * b for a, b in zip(strong, plain, strict=True)], abs=0.51)
    distances = [math.dist(tint(step / 10, name), plain) for step in range(11)]
    assert all(after > before + 5 for before, after in itertools.pairwise(distances))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "dark"), ("15;0", "dark"), ("0;15", "light"), ("0;default;15", "light"), ("0;7", "light"), ("", "dark")],
)
def test_a_terminal_says_whether_it_is_light(monkeypatch: pytest.MonkeyPatch, value: str | None, expected: str) -> None:
    monkeypatch.delenv("COLORFGBG", raising=False)
    if value is not None:
        monkeypatch.setenv("COLORFGBG", value)
    assert mode() == expected


@pytest.mark.parametrize("where", ["dark", "light"])
@pytest.mark.parametrize("system", ["256", "truecolor"])
def test_a_stronger_color_is_further_from_the_plain_one_and_its_text_is_readable(
    monkeypatch: pytest.MonkeyPatch, system: str, where: str
) -> None:
    monkeypatch.setenv("COLORFGBG", "15;0" if where == "dark" else "0;15")
    out = Console(force_terminal=True, color_system=system)  # type: ignore[arg-type]
    styles = [background(-bits * math.log(2), out) for bits in range(11)]
    pairs = [(each.color, each.bgcolor) for each in styles]
    if system == "256":
        assert list(dict.fromkeys(surface.number for _, surface in pairs if surface)) == list(TERMINAL_256[where])
    shades = [(_luminance(text), _luminance(surface)) for text, surface in pairs if text and surface]
    plain = shades[0][1]
    distances = [abs(surface - plain) for _, surface in shades]
    assert distances == sorted(distances)
    # The contrast that the Web Content Accessibility Guidelines 2.2 ask for.
    assert all((max(pair) + 0.05) / (min(pair) + 0.05) >= 4.5 for pair in shades)


def test_a_terminal_with_16_colors_has_three_strengths() -> None:
    out = Console(force_terminal=True, color_system="standard")
    styles = [str(background(-bits * math.log(2), out)) for bits in range(11)]
    assert styles == ["none"] * 4 + ["yellow"] * 3 + ["black on yellow"] * 4


def _luminance(color: Color) -> float:
    """The relative luminance of a color, from 0 (black) to 1 (white)."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in color.get_truecolor())
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
