"""The color of a token's probability in terminals: that of the pages, the stronger the less likely."""

import functools
import math
import os
import re

from minigpt.pages.document import MOST_BITS, read_asset

# The scales of terminals with 256 colors, by their numbers, on a dark and on a light surface: of the fixed palette,
# those that are near the pages' colors and of which each is stronger than the one before.
TERMINAL_256 = {"dark": (234, 237, 94, 130, 166, 208), "light": (231, 230, 223, 222, 215, 208)}
_LIGHT = ("7", "15")  # the last part of COLORFGBG, which some terminals set, where the background is light


def surprisal_bits(logprob: float) -> float:
    """The surprisal of a token with this log-probability (in nats), in bits."""
    return max(0.0, -logprob / math.log(2))  # `max` avoids -0.0


def strength(logprob: float) -> float:
    """How strong the color of a token with this log-probability is: 0 if it was certain, a tenth for each bit, up to 1.

    Everywhere a strong color means an unlikely token.
    """
    return min(MOST_BITS, surprisal_bits(logprob)) / MOST_BITS


def mode() -> str:
    """Whether the terminal is "dark" or "light", as COLORFGBG says; without it "dark"."""
    return "light" if os.environ.get("COLORFGBG", "").rpartition(";")[2] in _LIGHT else "dark"


def tint(strength: float, mode: str) -> tuple[int, int, int]:
    """Red, green and blue, from 0 to 255, of the background with a strength from 0 to 1: that of the pages."""
    palette = _palette(mode)
    share = strength * palette["strongest"][0] / 100
    red, green, blue = (
        round(share * strong + (1 - share) * plain)
        for strong, plain in zip(palette["unlikely"], palette["background"], strict=True)
    )
    return red, green, blue


@functools.cache
def _palette(mode: str) -> dict[str, tuple[int, ...]]:
    """The numbers of palette.css, by name: colors of this mode, and the percentage of the strongest tint."""
    found = {}
    styles = read_asset("minigpt.pages", "palette.css")
    for name, light, dark in re.findall(r"--([\w-]+): light-dark\(#(\w{6}), #(\w{6})\)", styles):
        found[name] = tuple(bytes.fromhex(light if mode == "light" else dark))
    return found | {name: (int(value),) for name, value in re.findall(r"--([\w-]+): (\d+)%", styles)}
