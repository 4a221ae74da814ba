"""Detects loss spikes, so that their steps are skipped, and defines the error for a run that has diverged."""

import torch
from torch import Tensor

_NEWEST_WEIGHT = 0.03  # of the newest loss in the running mean and variance
_MIN_LOSSES = 100  # before the variance is meaningful
_MIN_DEVIATION = 0.02  # times the mean: if the loss hardly varies, a small rise is no spike


class DivergedError(Exception):
    """Training has diverged; the message says what was observed."""


class SpikeDetector:
    """Detects loss spikes by a z-score, in tensors on the device, so that it never waits for the GPU.

    `statistics` is (3,) float32: the running mean and variance of the loss, and the number of losses in them.
    Source: the outlier detector of Karpathy's llm.c, which uses a window of 128 steps.
    """

    def __init__(self, threshold: float, device: torch.device) -> None:
        self.threshold = threshold
        self.statistics = torch.zeros(3, device=device)

    def reset(self) -> None:
        """Forgets all losses, as for another text."""
        self.statistics = torch.zeros_like(self.statistics)

    def observe(self, loss: Tensor, gradient_norm: Tensor) -> Tensor:
        """Returns whether to skip this step; adds the loss to the statistics if not.

        A step is skipped if its loss or gradient is NaN or infinite, or if its loss is more than `threshold` standard
        deviations above the running mean. A threshold of 0 turns the latter off, and it needs 100 losses first.
        Shapes: loss () and gradient_norm () -> () bool.
        """
        mean, variance, count = self.statistics.unbind()
        deviation = torch.maximum(variance.sqrt(), _MIN_DEVIATION * mean)
        skip = ~(loss.isfinite() & gradient_norm.isfinite())
        if self.threshold:
            skip = skip | ((count >= _MIN_LOSSES) & (loss > mean + self.threshold * deviation))
        weight = torch.clamp(1 / (count + 1), min=_NEWEST_WEIGHT)
        difference = loss - mean
        updated = torch.stack(
            [mean + weight * difference, (1 - weight) * (variance + weight * difference**2), count + 1]
        )
        self.statistics = torch.where(skip, self.statistics, updated)
        return skip
