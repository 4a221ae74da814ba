"""Detects loss spikes, so that their steps are skipped, and defines the errors for a run that has diverged."""

import math

import torch
from torch import Tensor

from minigpt.errors import TrainingError
from minigpt.units import shown_loss

_NEWEST_WEIGHT = 0.03  # of the newest loss in the running mean and variance
_MIN_LOSSES = 100  # before the variance is meaningful
_MIN_DEVIATION = 0.02  # times the mean: if the loss hardly varies, a small rise is no spike
_FAR_ABOVE = 2.0  # times the loss of a uniform guess; with 1.6 times in its warmup, a run still learned
_ENDS_ABOVE = 1.1  # times the same, at the end of a run


class DivergedError(Exception):
    """Training has diverged; the message says what was observed."""


class RunDivergedError(TrainingError):
    """A run has diverged and cannot continue: what was `observed`, and the `advice` to the user."""

    def __init__(self, observed: str, advice: str) -> None:
        super().__init__(observed, advice)  # both, so that the error can be sent to another process
        self.observed, self.advice = observed, advice

    def __str__(self) -> str:
        return f"{self.observed}; {self.advice}"


class SpikeDetector:
    """Detects loss spikes by a z-score, in tensors on the device, so that it never waits for the GPU.

    `statistics` is (3,) float32: the running mean and variance of the loss, and the number of losses in them.
    `uniform_loss` is the loss of a uniform guess among the tokens of the vocabulary.
    Source: the outlier detector of Karpathy's llm.c, which uses a window of 128 steps.
    """

    def __init__(self, threshold: float, vocab_size: int, device: torch.device) -> None:
        self.threshold, self.uniform_loss = threshold, math.log(vocab_size)
        self.statistics = torch.zeros(3, device=device)

    def reset(self) -> None:
        """Forgets all losses, as for another text."""
        self.statistics = torch.zeros_like(self.statistics)

    def observe(self, loss: Tensor, gradient_norm: Tensor) -> Tensor:
        """Returns whether to skip this step; adds the loss to the statistics if not.

        A step is skipped if its loss or gradient is NaN or infinite, if its loss is more than `threshold` standard
        deviations above the running mean, which needs 100 losses first, or if it is more than twice both that mean and
        the loss of a uniform guess. A threshold of 0 turns the last two off.
        Shapes: loss () and gradient_norm () -> () bool.
        """
        mean, variance, count = self.statistics.unbind()
        deviation = torch.maximum(variance.sqrt(), _MIN_DEVIATION * mean)
        skip = ~(loss.isfinite() & gradient_norm.isfinite())
        if self.threshold:
            skip = skip | ((count >= _MIN_LOSSES) & (loss > mean + self.threshold * deviation))
            skip = skip | ((count >= 1) & (loss > _FAR_ABOVE * mean.clamp(min=self.uniform_loss)))
        weight = torch.clamp(1 / (count + 1), min=_NEWEST_WEIGHT)
        difference = loss - mean
        updated = torch.stack(
            [mean + weight * difference, (1 - weight) * (variance + weight * difference**2), count + 1]
        )
        self.statistics = torch.where(skip, self.statistics, updated)
        return skip

    def check_validation_loss(self, loss: float, lowest: float | None) -> None:
        """Raises DivergedError if a validation loss is far above the loss of a uniform guess and the `lowest` so far.

        It is not if the training loss is below a uniform guess: such a model has memorized its training text.
        """
        is_far = loss > _FAR_ABOVE * max(self.uniform_loss, lowest or loss)
        if self.threshold and is_far and self.statistics[0] > self.uniform_loss:
            value, uniform = shown_loss(loss), shown_loss(self.uniform_loss)
            raise DivergedError(f"the validation loss is {value}, far above the {uniform} of a uniform guess")

    def ends_diverged(self, loss: float | None, lowest: float | None) -> bool:
        """Whether the last validation loss is above that of a uniform guess and above the `lowest` of the run.

        If the training loss is below it, the model has memorized its training text instead.
        """
        if loss is None or lowest is None or not self.threshold:
            return False
        return bool(loss > _ENDS_ABOVE * max(self.uniform_loss, lowest) and self.statistics[0] > self.uniform_loss)
