"""The predictions of a teacher as soft targets of the loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.config import TrainConfig
from minigpt.distillation.settings import DistillationSettings
from minigpt.errors import ConfigError
from minigpt.model.gpt import GPT, accelerate
from minigpt.model.logits import logits_buffer
from minigpt.training.step_parts import StepParts


@dataclass(frozen=True, eq=False)
class TeacherTargets:
    """What a teacher predicts for the targets, and the `weight` of that in the loss, from 0 to 1.

    The gradient of the loss is that of (1 - w) cross entropy + w KL(teacher, student), from which it differs by a
    constant.
    Source: Hinton et al. 2015, "Distilling the knowledge in a neural network", at temperature 1.
    Shapes: features (N, C) and head (V, C) of the teacher, whose width may be another than the student's.
    """

    features: Tensor
    head: Tensor
    weight: float

    def logits(self, dtype: torch.dtype, rows: int, width: int) -> Callable[[int, int], Tensor]:
        features = self.features.to(dtype)
        head = F.pad(self.head.to(dtype), (0, 0, 0, width - len(self.head)))
        buffer = logits_buffer(features, rows, width)
        return lambda start, count: torch.mm(features[start : start + count], head.t(), out=buffer[:count])


class Teacher(nn.Module):
    """A teacher that reads the same tokens as the model; it is not trained and has no dropout."""

    def __init__(self, model: GPT, weight: float) -> None:
        super().__init__()
        self.model, self.weight = model, weight
        self.features: Callable[..., Tensor] = model.features
        model.requires_grad_(False)
        model.zero_grad(set_to_none=True)  # what its training left

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """The teacher never has dropout."""
        return super().train(False)

    def forward(self, inputs: Tensor, scored: Tensor | None = None, ids: Tensor | None = None) -> TeacherTargets:
        """What the teacher predicts after each position, or the `scored` ones, for all tokens or those of `ids`."""
        head = self.model.token_embedding.weight
        with torch.no_grad():
            features = self.features(inputs).flatten(0, 1)  # (N, C)
            if scored is not None:
                features = features.index_select(0, scored)
        return TeacherTargets(features, head if ids is None else head.index_select(0, ids), self.weight)


def use_teacher(parts: StepParts, config: TrainConfig, given: dict[str, Any]) -> None:
    """Mixes the predictions of `train(teacher=...)` into the targets of the loss, with the weight `distill_weight`.

    The teacher is a trained model that reads the same tokens. It may have another shape, not another vocabulary. Its
    weights are frozen from then on. `minigpt.fit()` trains one first where that pays.
    Raises: ConfigError if there is no teacher although the settings need one, or it does not fit the model.
    """
    teacher, settings = given.pop("teacher", None), DistillationSettings.of(config)
    if teacher is None:
        if settings.distill == "on":
            raise ConfigError("distill (on) needs a teacher: give train() one, or use minigpt.fit(), which trains it")
        return
    _check_teacher(teacher, parts.model, config)
    teacher.to(parts.model.token_embedding.weight.device)
    accelerate(teacher)
    parts.loss.soft_targets = Teacher(teacher, settings.distill_weight)


def _check_teacher(teacher: GPT, model: GPT, config: TrainConfig) -> None:
    if teacher.config.vocab_size != model.config.vocab_size:
        raise ConfigError(
            f"the teacher's vocabulary has {teacher.config.vocab_size} tokens; it must have those of the model, "
            f"{model.config.vocab_size}"
        )
    context = config.context_length or model.config.n_positions
    if teacher.config.n_positions < context:
        raise ConfigError(
            f"the teacher's n_positions ({teacher.config.n_positions}) must be at least the context_length ({context})"
        )
    if getattr(config, "sharding", "off") == "on":
        raise ConfigError("a teacher cannot be combined with sharding (on); omit one of them")
