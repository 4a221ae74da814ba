"""What a model of some size will come to after so much text: a law fitted to small experiments; it trains nothing.

    bits per byte / entropy = FLOOR + WIDTH (millions of inner parameters)^-ALPHA + DATA (megabytes learnt from)^-BETA
                              - WORDS log2(words of the vocabulary)

The form is that of Hoffmann et al. 2022, equation 2; text seen again counts less each time, as in Muennighoff et al.
2023, equation 5. The constants are what `python benchmarks/scaling.py fit` prints for the experiments in scaling.jsonl.
"""

import bz2
import math

from minigpt.config import GPTConfig

FLOOR, WIDTH, ALPHA, DATA, BETA = 0.8573, 0.0272, 0.55, 0.2454, 0.55
WORDS, REPEATS = 0.0158, 3.0
_ENOUGH = 1_000_000  # bytes: of less a compressor makes less


def entropy(text: bytes) -> float:
    """Bits per byte that a block-sorting compressor leaves of a text's first megabyte: how hard it is, before any model
    has seen it."""
    beginning = text[:_ENOUGH]
    return 8 * len(bz2.compress(beginning)) / len(beginning)


def effective_bytes(seen: float, n_bytes: float, repeats: float) -> float:
    """What `seen` bytes are worth in bytes never seen, where the text has only `n_bytes` of them."""
    epochs = seen / n_bytes
    if epochs <= 1:
        return seen
    return n_bytes * (1 + repeats * (1 - math.exp(-(epochs - 1) / repeats)))


def expected_bits_per_byte(model: GPTConfig, seen: float, n_bytes: int, entropy: float) -> float:
    """The bits per byte on held-out text after training on `seen` bytes, of a text that has `n_bytes` of them."""
    inner = model.n_inner_parameters / 1e6
    data = effective_bytes(max(seen, 1.0), max(n_bytes, 1), REPEATS) / 1e6
    return entropy * (FLOOR + WIDTH * inner**-ALPHA + DATA * data**-BETA - WORDS * math.log2(model.vocab_size))
