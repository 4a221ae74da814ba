"""Sampled softmax: a training step compares its targets with a random part of the vocabulary.

The head multiplies with every token of the vocabulary, which is most of a small model's arithmetic. Most tokens are
rare, and their probabilities together are small: a sample of them is enough to estimate the sum of all exponentials.
"""

from functools import partial
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from minigpt.seeds import mix_seed
from minigpt.training.loss import LossModel
from minigpt.training.world import is_sharded_tensor

EXCLUDED = -1e4  # added to the logits of tokens that are not in a sample: finite, so that its product with 0 is 0
_POWER = 0.75  # of a token's frequency, which its probability to be in a sample is proportional to
_LEAST = 0.05  # probability to be in a sample: its inverse is the largest factor of a token's exponential
_MULTIPLE = 128  # of which the number of a step's tokens is one
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


class StepVocabulary(NamedTuple):
    """The tokens that a micro-batch needs: those of the sample, its inputs and its targets.

    Only their rows of the token embedding are read, and only these rows have a gradient. An input outside the sample
    has no probability, and a target outside it counts in its own row only. Other tokens without probability make S a
    multiple of 128, because oneDNN compiles its matrix products for each new S, which takes longer than computing them.
    Shapes: ids (S,) int64, in order; inputs (B, T) and targets (B, T) int64, the positions of the tokens in `ids`;
    corrections (S,).
    """

    ids: Tensor
    inputs: Tensor
    targets: Tensor
    corrections: Tensor

    @classmethod
    def of(cls, inputs: Tensor, targets: Tensor, corrections: Tensor, scored: Tensor | None = None) -> Self:
        """The vocabulary for inputs and targets and the corrections of a sample, (V,).

        Of the flattened targets, only those at the positions `scored` (N,) are needed; by default all.
        """
        if scored is not None:
            targets = targets.flatten().index_select(0, scored)[None]
        contained = corrections > EXCLUDED
        contained[inputs] = True
        contained[targets] = True
        missing = -int(contained.sum()) % _MULTIPLE
        contained[(~contained).nonzero()[:missing, 0]] = True  # fewer if the vocabulary has no more
        ids = contained.nonzero().flatten()
        positions = contained.cumsum(0) - 1
        return cls(ids, positions[inputs], positions[targets], corrections[ids])


class SampledLossModel(LossModel):
    """A model with the loss of a sampled softmax, which reads the rows of the token embedding that a batch needs.

    With `sparse_gradient`, the token embedding's gradient is a sparse tensor of only these rows.
    Source: Jean et al. 2015, "On using very large target vocabulary for neural machine translation", section 3.
    """

    sparse_gradient = False

    @classmethod
    def of(cls, other: LossModel) -> Self:
        """The same model with the same soft targets and plan."""
        loss = cls(other.model)
        loss.plan, loss.soft_targets = other.plan, other.soft_targets
        return loss

    def forward(  # type: ignore[override]
        self, inputs: Tensor, _: Tensor, scored: Tensor | None, *vocabulary: Tensor
    ) -> Tensor:
        """The mean loss in nats per token; `vocabulary` is the micro-batch's StepVocabulary.

        It is an estimate: on average, the sum of its exponentials is that over the vocabulary.
        """
        step = StepVocabulary(*vocabulary)
        soft = None if self.soft_targets is None else self.soft_targets(inputs, scored, step.ids)
        embedding = self.model.token_embedding.weight
        if is_sharded_tensor(embedding):  # `features` gathers it
            features = self.features(inputs)
            rows = select_rows(self.model.token_embedding.weight, step.ids)
        else:
            rows = select_rows(embedding, step.ids, sparse=self.sparse_gradient)  # (S, C)
            features = self.features(inputs, vectors=F.embedding(step.inputs, rows))
        if scored is not None:
            features = features.flatten(0, 1).index_select(0, scored)[None]  # (1, N, C)
        return self.head_loss(features, rows, step.targets, soft, partial(correct_, corrections=step.corrections))


def select_rows(weight: Tensor, ids: Tensor, *, sparse: bool = False) -> Tensor:
    """`weight.index_select(0, ids)` for different ids in order, with a faster gradient: (V, C), (S,) -> (S, C).

    The gradient may be `sparse`: a tensor of only these rows, which not every optimizer can read.
    """
    return _SelectedRows.apply(weight, ids, sparse)  # type: ignore[no-untyped-call]


class _SelectedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, sparse: bool) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows, ctx.sparse = len(weight), sparse
        return weight.index_select(0, ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        shape = ctx.rows, gradient.shape[1]
        if ctx.sparse:
            rows = gradient.contiguous()
            whole = torch.sparse_coo_tensor(ids[None], rows, shape, is_coalesced=True, check_invariants=False)
        else:
            whole = gradient.new_zeros(shape).index_copy_(0, ids, gradient)
        return whole, None, None


def correct_(logits: Tensor, targets: Tensor, corrections: Tensor) -> None:
    """Adds the corrections (V,) to logits (n, V), but not to those of the rows' targets, (n, 1), which count once."""
    rows, columns = torch.arange(len(logits), device=logits.device), targets[:, 0]
    own = logits[rows, columns]  # (n,)
    logits.add_(corrections.to(logits.dtype))
    logits[rows, columns] = own  # `scatter_` would copy all logits, whose rows begin at whole cache lines
