"""Sampled softmax: a training step compares its targets with a random part of the vocabulary.

The head multiplies with every token of the vocabulary, which is most of a small model's arithmetic. Most tokens are
rare, and their probabilities together are small: a sample of them is enough to estimate the sum of all exponentials.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from minigpt.seeds import mix_seed

EXCLUDED = -1e4  # added to the logits of tokens that are not in a sample: finite, so that its product with 0 is 0
_POWER = 0.75  # of a token's frequency, which its probability to be in a sample is proportional to
_LEAST = 0.05  # probability to be in a sample: its inverse is the largest factor of a token's exponential
_SALT = 0x5A3D  # so that samples and batches do not use the same random numbers


class TokenSampler:
    """Draws the tokens that the softmax of a step contains: frequent ones more often, the most frequent ones always.

    Shape: counts (V,), how often each token is in the training text.
    Source: Bengio and Senécal 2008, "Adaptive importance sampling to accelerate training of a neural probabilistic
    language model"; Mikolov et al. 2013, "Distributed representations of words and phrases", section 2.2 (the power).
    """

    def __init__(self, counts: Tensor, size: int, seed: int) -> None:
        self.probabilities = inclusion_probabilities(counts, size)  # (V,)
        self.seed = seed

    def corrections(self, step: int) -> Tensor:
        """What is added to each token's logit in a step, (V,): -ln(probability) if it is in the sample, else EXCLUDED.

        With it, the expected sum of the exponentials of a sample is the sum over the vocabulary.
        """
        generator = torch.Generator().manual_seed(mix_seed(self.seed, step, _SALT))
        drawn = torch.rand(len(self.probabilities), generator=generator)
        return torch.where(drawn < self.probabilities, -self.probabilities.log(), EXCLUDED)


def inclusion_probabilities(counts: Tensor, size: int) -> Tensor:
    """The probability of each token to be in a sample, (V,), so that samples have `size` tokens on average.

    It is proportional to the frequency to the power of 0.75, but at least 0.05 and at most 1; samples are larger than
    `size` if that makes them so.
    """
    weights = (counts.double() + 1) ** _POWER
    low, high = 0.0, 1.0 / float(weights.min())  # at `high`, every probability is 1
    for _ in range(60):
        factor = (low + high) / 2
        if (factor * weights).clamp(_LEAST, 1).sum() > size:
            high = factor
        else:
            low = factor
    return (low * weights).clamp(_LEAST, 1).float()


@dataclass(frozen=True, eq=False)
class SampledHead:
    """The tokens that the logits of a micro-batch are computed for: those of the sample, and all targets.

    A target outside the sample counts in its own row only. Shapes: ids (S,) int64, in order; corrections (S,); targets
    (N,) int64, the positions of the targets in `ids`.
    """

    ids: Tensor
    corrections: Tensor
    targets: Tensor

    @classmethod
    def of(cls, targets: Tensor, corrections: Tensor) -> Self:
        """The head for targets (N,) and the corrections of a sample, (V,)."""
        contained = corrections > EXCLUDED
        contained[targets] = True
        ids = contained.nonzero().flatten()
        positions = contained.cumsum(0) - 1
        return cls(ids, corrections[ids], positions[targets])

    def correct_(self, logits: Tensor, targets: Tensor) -> None:
        """Adds the corrections to logits (n, S), except those of the rows' targets, (n, 1), which always count once."""
        own = logits.gather(1, targets)  # (n, 1)
        logits.add_(self.corrections.to(logits.dtype)).scatter_(1, targets, own)
