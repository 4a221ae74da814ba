"""One scale from dark blue to bright yellow, even in lightness and the same to colour-blind eyes: cividis."""

import math

# Every tenth of the scale. Source: Nuñez, Anderton and Renslow 2018, "Optimizing colormaps with consideration for color
# vision deficiency", as matplotlib has it.
CIVIDIS = (
    "00224e", "083370", "35456c", "4f576c", "666970", "7d7c78", "948e77", "aea371", "c8b866", "e5cf52", "fee838"
)  # fmt: skip

DARKEST_BITS = 10  # a surprise that is as dark as it gets: a probability of one in 1024


def color(share: float) -> tuple[int, int, int]:
    """Red, green and blue from 0 to 255 at a place of the scale from 0 (dark) to 1 (bright)."""
    at = min(1.0, max(0.0, share)) * (len(CIVIDIS) - 1)
    low = min(int(at), len(CIVIDIS) - 2)
    ends = (bytes.fromhex(CIVIDIS[low]), bytes.fromhex(CIVIDIS[low + 1]))
    red, green, blue = (round(a + (at - low) * (b - a)) for a, b in zip(*ends, strict=True))
    return red, green, blue


def likelihood(logprob: float) -> float:
    """Where a token's probability stands on the scale: 1 for a certain one, a tenth less for each bit of surprise."""
    return 1 - min(DARKEST_BITS, bits(logprob)) / DARKEST_BITS


def bits(nats: float) -> float:
    """The surprise of a log-probability, in bits."""
    return max(0.0, -nats / math.log(2))  # and never -0.0
