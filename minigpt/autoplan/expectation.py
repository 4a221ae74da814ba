"""The bits per byte to expect of a run: two fits to experiments.

Models on the same text are compared by size and by the amount of training text (`relative_loss`):

    bits per byte / entropy = FLOOR + WIDTH (millions of inner parameters)^-ALPHA + DATA (megabytes learned from)^-BETA
                              - VOCABULARY log2(vocabulary size)

The entropy is that of `CorpusStats`. The form is that of Hoffmann et al. 2022, equation 2; repeated text counts less
each time, as in Muennighoff et al. 2023, equation 5. Texts are compared in another form, with the spread of the
experiments around it (`expected_range`):

    bits per byte = SCALE entropy^ENTROPY (megabytes of text)^-TEXT exp(TRAINED (millions of tokens)^-0.5 / entropy)

With a sampled softmax, times SAMPLED. The tokens are those trained on. A 5-gram model has read all of the text. The
easier a text is for it, the more a model that has read little lacks. `python benchmarks/scaling.py fit` prints the
constants and the spread for the experiments in scaling.jsonl.
"""

import math
from typing import NamedTuple

from minigpt.autoplan.corpus_stats import CorpusStats
from minigpt.config import GPTConfig

FLOOR, WIDTH, ALPHA, DATA, BETA = 0.8573, 0.0272, 0.55, 0.2454, 0.55
VOCABULARY, REPEATS = 0.0158, 3.0
SCALE, ENTROPY, TEXT, TRAINED = 0.632, 1.376, 0.042, 0.231
SAMPLED = 0.943  # of the bits per byte, with a sampled softmax
SPREAD = 0.1  # in the logarithm: five of six texts were this near to a fit to the others; 55 texts are few
LEAST_ENTROPY, MOST_ENTROPY = 1.2, 3.2  # a little outside the experiments; noise and tables have others
EXPERIMENTS = {  # their bounds: millions of tokens, megabytes, passes over the text, millions of parameters
    "tokens": (0.046, 2.0),
    "text": (0.041, 18.0),
    "passes": (0.029, 19.0),
    "size": (0.78, 2.7),
}
LONGER_SPREAD = 0.035  # in the logarithm, of the change by training longer: nine of ten pairs of runs, of 3 texts
_MOST_LONGER = 4.0  # times as many tokens, as in those pairs
_MOST_OUTSIDE = 1.4  # of the experiments: a factor of 4 in one figure, or of 2 in two


class ExpectedRange(NamedTuple):
    """The range in which the bits per byte of four of five runs end."""

    low: float
    high: float

    def times(self, factor: float) -> "ExpectedRange":
        """The range of runs that end at `factor` times the bits per byte."""
        return ExpectedRange(factor * self.low, factor * self.high)

    def __str__(self) -> str:
        return f"{self.low:.2f}–{self.high:.2f}"


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


def expected_range(
    model: GPTConfig, tokens: float, stats: CorpusStats, *, sampled: bool = False
) -> ExpectedRange | None:
    """The expected range after training on `tokens` tokens of a text; wider outside the range of the experiments.

    `sampled` says that training samples the vocabulary, which then is large for the text. None if nothing was held out,
    for a text that is no prose or code, and far outside the range of the experiments.
    """
    outside = _outside_experiments(model, tokens, stats)
    if outside is None or stats.entropy is None:
        return None
    center = SCALE * stats.entropy**ENTROPY * (stats.n_bytes / 1e6) ** -TEXT * _trained(tokens, stats.entropy)
    center *= SAMPLED if sampled else 1.0
    factor = math.exp(SPREAD * (1 + outside / 2))
    return ExpectedRange(center / factor, center * factor)


def continued_range(
    bits_per_byte: float, model: GPTConfig, tokens: float, longer: float, stats: CorpusStats
) -> ExpectedRange | None:
    """The range expected of a run that ended at `bits_per_byte` after `tokens` tokens, if it continues to `longer`.

    The run's own result replaces the fit to other texts, so the range is narrower than that of `expected_range`. None
    where that says nothing either, and for more than four times the tokens.
    """
    outside = _outside_experiments(model, longer, stats)
    if outside is None or stats.entropy is None or not tokens < longer <= _MOST_LONGER * tokens:
        return None
    center = bits_per_byte * _trained(longer, stats.entropy) / _trained(tokens, stats.entropy)
    factor = math.exp(LONGER_SPREAD * (1 + outside / 2))
    return ExpectedRange(center / factor, center * factor)


def _trained(tokens: float, entropy: float) -> float:
    """The factor of the bits per byte that depends on the number of tokens trained on."""
    return math.exp(TRAINED * (tokens / 1e6) ** -0.5 / entropy)


def _outside_experiments(model: GPTConfig, tokens: float, stats: CorpusStats) -> float | None:
    """How far a run is outside the range of the experiments, as a logarithm; None if nothing can be said about it."""
    if stats.entropy is None or not LEAST_ENTROPY <= stats.entropy <= MOST_ENTROPY or tokens <= 0:
        return None
    figures = {
        "tokens": tokens / 1e6,
        "text": stats.n_bytes / 1e6,
        "passes": tokens / stats.n_tokens,
        "size": model.n_inner_parameters / 1e6,
    }
    outside = sum(_outside(figures[name], *bounds) for name, bounds in EXPERIMENTS.items())
    return None if outside > _MOST_OUTSIDE else outside


def _outside(value: float, low: float, high: float) -> float:
    return max(0.0, math.log(low / value), math.log(value / high))
