"""Colors for probabilities, of the cividis scale, for pages, pictures and terminals."""

import math

from minigpt.pages.document import CIVIDIS

# The scale of terminals with 256 colors, by their numbers: of the fixed palette, those that are near cividis and get
# brighter from one to the next. The nearest colors themselves repeat, and some are darker than the one before.
TERMINAL_256 = (17, 18, 19, 24, 60, 66, 102, 108, 144, 186, 228)

DARKEST_BITS = 10  # the surprisal with the darkest color: a probability of 1 in 1024


def color(brightness: float) -> tuple[int, int, int]:
    """Red, green and blue, from 0 to 255, of a brightness from 0 (darkest) to 1 (brightest)."""
    at = min(1.0, max(0.0, brightness)) * (len(CIVIDIS) - 1)
    low = min(int(at), len(CIVIDIS) - 2)
    ends = (bytes.fromhex(CIVIDIS[low]), bytes.fromhex(CIVIDIS[low + 1]))
    red, green, blue = (round(a + (at - low) * (b - a)) for a, b in zip(*ends, strict=True))
    return red, green, blue


def terminal_256(brightness: float) -> int:
    """The number of the color, of a terminal's 256, for a brightness from 0 (darkest) to 1 (brightest)."""
    return TERMINAL_256[round(min(1.0, max(0.0, brightness)) * (len(TERMINAL_256) - 1))]


def brightness(logprob: float) -> float:
    """The brightness for a token's log-probability: 1 for a certain token, less by 0.1 for each bit of surprisal."""
    return 1 - min(DARKEST_BITS, surprisal_bits(logprob)) / DARKEST_BITS


def surprisal_bits(logprob: float) -> float:
    """The surprisal of a token with this log-probability (in nats), in bits."""
    return max(0.0, -logprob / math.log(2))  # `max` avoids -0.0
