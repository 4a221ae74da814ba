"""The bits per byte to expect from a model's size and the amount of training text: a fit to small experiments.

    bits per byte / entropy = FLOOR + WIDTH (millions of inner parameters)^-ALPHA + DATA (megabytes learned from)^-BETA
                              - VOCABULARY log2(vocabulary size)

The form is that of Hoffmann et al. 2022, equation 2; repeated text counts less each time, as in Muennighoff et
al. 2023, equation 5. `python benchmarks/scaling.py fit` prints the constants for the experiments in
scaling.jsonl.
"""

import bz2
import math

from minigpt.config import GPTConfig

FLOOR, WIDTH, ALPHA, DATA, BETA = 0.8573, 0.0272, 0.55, 0.2454, 0.55
VOCABULARY, REPEATS = 0.0158, 3.0
_SAMPLE = 1_000_000  # bytes: the figure depends on the size, so it is the same for every text


def entropy(text: bytes) -> float:
    """Bits per byte of a text's first megabyte after compression by bzip2: how hard the text is to predict."""
    beginning = text[:_SAMPLE]
    return 8 * len(bz2.compress(beginning)) / len(beginning)


def effective_bytes(seen: float, n_bytes: float, repeats: float) -> float:
    """The bytes of new text that teach as much as `seen` bytes of a text that has only `n_bytes`."""
    epochs = seen / n_bytes
    if epochs <= 1:
        return seen
    return n_bytes * (1 + repeats * (1 - math.exp(-(epochs - 1) / repeats)))


def expected_bits_per_byte(model: GPTConfig, seen: float, n_bytes: int, entropy: float) -> float:
    """The bits per byte on held-out text after training on `seen` bytes of a text that has `n_bytes`."""
    inner = model.n_inner_parameters / 1e6
    data = effective_bytes(max(seen, 1.0), max(n_bytes, 1), REPEATS) / 1e6
    return entropy * (FLOOR + WIDTH * inner**-ALPHA + DATA * data**-BETA - VOCABULARY * math.log2(model.vocab_size))
