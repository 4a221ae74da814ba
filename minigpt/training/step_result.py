"""The measurements of one optimizer step, and what they say about divergence."""

import math
from dataclasses import dataclass

from minigpt.training.spike_detection import DivergedError

_SKIPS_OF_DIVERGENCE = 5  # skipped steps in a row that mean that training has diverged


@dataclass(frozen=True)
class StepResult:
    """The measurements of one step. `step` counts from 1.

    Units: `loss` nats per token, NaN if none is scored; `gradient_norm` before clipping. `loss_scale` multiplies
    float16 losses, else None.
    """

    step: int
    learning_rate: float
    loss: float
    gradient_norm: float
    skipped: bool
    loss_scale: float | None = None

    @property
    def overflowed(self) -> bool:
        """Whether only the gradient is infinite, since it was too large for its loss scale."""
        return self.loss_scale is not None and math.isfinite(self.loss) and not math.isfinite(self.gradient_norm)

    @property
    def skip_reason(self) -> str:
        """Why the step was skipped, for the user."""
        if math.isfinite(self.loss) and math.isfinite(self.gradient_norm):
            return f"loss {self.loss:.4g} is far above the recent losses"
        return f"loss {self.loss:.4g}, gradient norm {self.gradient_norm:.4g}"

    def check_divergence(self, consecutive_skips: int) -> None:
        """Raises DivergedError if too many steps in a row were skipped, or if float16 overflows at every loss scale.

        Each overflow halves the loss scale. That may happen many times in a row and is harmless until the scale is
        below 1.
        """
        if self.loss_scale is not None and self.loss_scale < 1:
            raise DivergedError(f"float16 gradients overflow at every loss scale, now {self.loss_scale:g}")
        if consecutive_skips >= _SKIPS_OF_DIVERGENCE:
            raise DivergedError(
                f"loss {self.loss:.4g}, gradient norm {self.gradient_norm:.4g}; {_SKIPS_OF_DIVERGENCE} steps in a row "
                f"were skipped at learning rate {self.learning_rate:.3g}"
            )
