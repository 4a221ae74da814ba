"""Which steps to leave out: those whose loss jumps far above the recent ones or is no number; it changes no weights."""

import torch
from torch import Tensor

_MEMORY = 0.03  # weight of the newest loss in the running mean and variance
_TRUSTED_AFTER = 100  # losses before the variance says anything
_LEAST_DEVIATION = 0.02  # of the mean: a loss that hardly varies makes no spike of a small rise


class SpikeDetector:
    """A z-score over the training loss, kept in tensors on the device so that asking it waits for nothing.

    `statistics` is (3,) float32: mean and variance, both running, and how many losses they saw.
    Source: the outlier spike_detector of Karpathy's llm.c, there over a window of 128 steps.
    """

    def __init__(self, threshold: float, device: torch.device) -> None:
        self.threshold = threshold
        self.statistics = torch.zeros(3, device=device)

    def forget(self) -> None:
        """Begins anew, as for another text."""
        self.statistics = torch.zeros_like(self.statistics)

    def judge(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Whether to leave this step out: a loss or a gradient that is not finite, or a loss `threshold` standard
        deviations above its running mean (never, where the threshold is 0, nor among the first 100 losses). What is
        left out is not learnt from.

        Shapes: loss () and norm () -> () bool.
        """
        mean, variance, count = self.statistics.unbind()
        deviation = torch.maximum(variance.sqrt(), _LEAST_DEVIATION * mean)
        bad = ~(loss.isfinite() & norm.isfinite())
        if self.threshold:
            bad = bad | ((count >= _TRUSTED_AFTER) & (loss > mean + self.threshold * deviation))
        weight = torch.clamp(1 / (count + 1), min=_MEMORY)
        step = loss - mean
        seen = torch.stack([mean + weight * step, (1 - weight) * (variance + weight * step**2), count + 1])
        self.statistics = torch.where(bad, self.statistics, seen)
        return bad
