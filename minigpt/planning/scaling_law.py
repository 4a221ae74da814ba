"""The bits per byte to expect from a model's size and the amount of training text: a fit to small experiments.

    bits per byte / entropy = FLOOR + WIDTH (millions of inner parameters)^-ALPHA + DATA (megabytes learned from)^-BETA
                              - VOCABULARY log2(vocabulary size)

The entropy is that of `CorpusStats`. The form is that of Hoffmann et al. 2022, equation 2; repeated text counts less
each time, as in Muennighoff et al. 2023, equation 5. `python benchmarks/scaling.py fit` prints the constants for the
experiments in scaling.jsonl.
"""

import math

from minigpt.config import GPTConfig

FLOOR, WIDTH, ALPHA, DATA, BETA = 0.8573, 0.0272, 0.55, 0.2454, 0.55
VOCABULARY, REPEATS = 0.0158, 3.0


def effective_bytes(seen: float, n_bytes: float, repeats: float) -> float:
    """The bytes of new text that teach as much as `seen` bytes of a text that has only `n_bytes`."""
    epochs = seen / n_bytes
    if epochs <= 1:
        return seen
    return n_bytes * (1 + repeats * (1 - math.exp(-(epochs - 1) / repeats)))


def relative_loss(model: GPTConfig, seen: float, n_bytes: int) -> float:
    """The bits per byte after training on `seen` bytes of a text that has `n_bytes`, divided by the text's entropy."""
    inner = model.n_inner_parameters / 1e6
    data = effective_bytes(max(seen, 1.0), max(n_bytes, 1), REPEATS) / 1e6
    return FLOOR + WIDTH * inner**-ALPHA + DATA * data**-BETA - VOCABULARY * math.log2(model.vocab_size)
