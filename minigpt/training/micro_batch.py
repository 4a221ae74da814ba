"""Where batches come from, and the rows of a batch that are computed together."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from minigpt.tokenizer.spelling import SpellingFeatures


class Batches(Protocol):
    """A source of batches: `minigpt.data.corpus.Corpus`, or random tokens to measure speed."""

    def batch(
        self, step: int, size: int, length: int, seed: int, rows: range, noise: float, bpe_dropout: float,
        loss_on: str, /,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Inputs and targets of some rows of a step's batch, (B, T) int64 each.

        The fraction `noise` of the inputs is random; `bpe_dropout` is the probability of dropping a merge. Targets that
        are not of the turns of the role `loss_on` are UNSCORED.
        """

    def scores_all(self, loss_on: str, /) -> bool:
        """Whether no target is UNSCORED."""

    def token_counts(self, vocab_size: int) -> Tensor:
        """How often each of the first `vocab_size` ids is in a part of the training tokens, (V,) int64."""

    def spelling_features(self, vocab_size: int) -> SpellingFeatures:
        """What the spellings of the first `vocab_size` tokens have in common."""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Some rows of a step's batch: inputs and targets, (B, T) int64 each.

    `scored` (N,) int64 are the positions in the flattened targets that count; None if all do.
    """

    rows: range
    inputs: Tensor
    targets: Tensor
    scored: Tensor | None

    @property
    def n_scored(self) -> int:
        """The number of targets that count."""
        if not self.rows:
            return 0
        return self.targets.numel() if self.scored is None else len(self.scored)
