"""The range in which the bits per byte of a run are expected to end: a fit to experiments, and their spread around it.

    bits per byte = SCALE entropy^ENTROPY (megabytes trained on)^-SEEN (megabytes of text)^-TEXT
                    (millions of inner parameters)^-SIZE

`scaling_law.py` compares models on the same text. This fit compares texts, which is why it has another form.
`python benchmarks/scaling.py fit` prints the constants and the spread for the experiments in scaling.jsonl.
"""

import math
from dataclasses import dataclass

from minigpt.config import GPTConfig
from minigpt.planning.corpus_stats import CorpusStats

SCALE, ENTROPY, SEEN, TEXT, SIZE = 0.855, 1.224, 0.077, 0.018, 0.006
SPREAD = 0.068  # in the logarithm: nine of ten experiments were this near to a fit to the other texts; 20 texts are few
LEAST_ENTROPY, MOST_ENTROPY = 1.2, 3.2  # a little outside the experiments; noise and tables have others
EXPERIMENTS = {  # their bounds: megabytes, passes over the text, millions
    "seen": (0.53, 9.2),
    "text": (0.041, 18.0),
    "passes": (0.03, 19.0),
    "size": (0.78, 2.7),
}
_MOST_OUTSIDE = 1.4  # of the experiments: a factor of 4 in one figure, or of 2 in two


@dataclass(frozen=True)
class ExpectedRange:
    """The range in which the bits per byte of four of five runs end."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.2f}–{self.high:.2f}"


def expected_range(model: GPTConfig, seen: float, stats: CorpusStats) -> ExpectedRange | None:
    """The expected range after training on `seen` bytes of a text; wider outside the range of the experiments.

    None if nothing was held out, for a text that is no prose or code, and far outside the range of the experiments.
    """
    if stats.entropy is None or not LEAST_ENTROPY <= stats.entropy <= MOST_ENTROPY or seen <= 0:
        return None
    figures = {
        "seen": seen / 1e6,
        "text": stats.n_bytes / 1e6,
        "passes": seen / stats.n_bytes,
        "size": model.n_inner_parameters / 1e6,
    }
    outside = sum(_outside(figures[name], *bounds) for name, bounds in EXPERIMENTS.items())
    if outside > _MOST_OUTSIDE:
        return None
    center = SCALE * math.prod(
        (
            stats.entropy**ENTROPY,
            figures["seen"] ** -SEEN,
            figures["text"] ** -TEXT,
            figures["size"] ** -SIZE,
        )
    )
    factor = math.exp(SPREAD * (1 + outside))
    return ExpectedRange(center / factor, center * factor)


def _outside(value: float, low: float, high: float) -> float:
    """How far a value is outside its bounds, as the natural logarithm of a factor."""
    return max(0.0, math.log(low / value), math.log(value / high))
