"""The functions given to `train()` or `fit()` as parts of a training step."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.config import TrainConfig
from minigpt.data.batches import UNSCORED
from minigpt.errors import ConfigError
from minigpt.model.gpt import GPT
from minigpt.training.loss import LossModel, select_scored
from minigpt.training.step_parts import Batches, MicroBatch, StepParts

Loss = Callable[[Tensor, Tensor], Tensor]
BatchTransform = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
_NAMES = ("loss_fn", "optimizer", "schedule", "batch_transform")


class GivenLoss(LossModel):
    """A model with a given loss of its logits."""

    def __init__(self, model: GPT, loss_fn: Loss) -> None:
        super().__init__(model)
        self.loss_fn = loss_fn

    def forward(self, inputs: Tensor, targets: Tensor, scored: Tensor | None = None, *_: Tensor) -> Tensor:
        """The loss of inputs and targets, (B, T) int64 each, as `LossModel`'s.

        Raises: ConfigError if `loss_fn` returns no tensor of one number.
        """
        features, targets = select_scored(self.features(inputs), targets, scored)
        logits = F.linear(features.flatten(0, 1), self.model.token_embedding.weight).float()
        loss = self.loss_fn(logits, targets.flatten())
        if not isinstance(loss, Tensor) or loss.dim():
            what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ConfigError(f"loss_fn returned {what}; it must be the mean loss, a tensor of shape ()")
        return loss


class TransformedBatches:
    """Batches after a given function, which gets and returns inputs and targets."""

    def __init__(self, others: Batches, transform: BatchTransform) -> None:
        self.others, self.transform = others, transform

    @property
    def scores_all(self) -> bool:
        """Never: the function may mark targets as UNSCORED."""
        return False

    def read(self, step: int, rows: range, height: float) -> MicroBatch:
        """Raises: ConfigError if the function returns other shapes."""
        batch = self.others.read(step, rows, height)
        inputs, targets = self.transform(batch.inputs, batch.targets, step)
        if inputs.shape != targets.shape or len(inputs) != len(batch.inputs):
            raise ConfigError(
                f"batch_transform returned inputs of shape {tuple(inputs.shape)} and targets of shape "
                f"{tuple(targets.shape)}; it must keep the {len(batch.inputs)} rows, and both must have one shape"
            )
        return MicroBatch(inputs, targets, (targets.flatten() != UNSCORED).nonzero().flatten())


def use_given(parts: StepParts, config: TrainConfig, given: dict[str, Any]) -> None:
    """Replaces parts of a step by what `train()` or `fit()` were given:

    - `loss_fn(logits, targets)`: the mean loss, (), of the scored positions: (N, V) float32, (N,) int64
    - `optimizer(model)`: a torch optimizer, or several; their `lr` is the config's `learning_rate`, which the schedule
      multiplies before each step
    - `schedule(step, progress)`: the factor of the learning rate of the step after `step` steps; `progress` is the part
      of the run that is done, from 0 to 1
    - `batch_transform(inputs, targets, step)`: both after a change, (B, T) int64 each; a target of -100 is not scored

    A run records the names of these functions, and continues only with functions of the same names.

    Raises: ConfigError for what cannot be combined with the settings.
    """
    functions = {name: value for name in _NAMES if (value := given.pop(name, None)) is not None}
    if not functions:
        return
    for name, function in functions.items():
        if not callable(function):
            raise ConfigError(f"{name} ({function!r}) must be a function")
    if (loss_fn := functions.get("loss_fn")) is not None:
        if type(parts.loss) is not LossModel or parts.loss.soft_targets is not None:
            raise ConfigError(
                "loss_fn needs the logits of all tokens and no teacher: give sampled_softmax=0, distill='off'"
            )
        parts.loss = GivenLoss(parts.model, loss_fn)
    if (optimizer := functions.get("optimizer")) is not None:
        parts.optimizers = _optimizers(optimizer(parts.model), parts.optimizers, config)
    if (schedule := functions.get("schedule")) is not None:
        if config.schedule != "constant":
            raise ConfigError(
                f"schedule, a function, replaces that of the settings ({config.schedule}): give them 'constant'"
            )
        parts.learning_rate = lambda step, progress: config.learning_rate * schedule(step, progress)
    if (transform := functions.get("batch_transform")) is not None:
        _transform(parts, transform)
    parts.given = ", ".join(f"{name} {_name_of(function)}" for name, function in functions.items())


def _optimizers(
    made: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    replaced: list[torch.optim.Optimizer],
    config: TrainConfig,
) -> list[torch.optim.Optimizer]:
    """The given optimizers, after a check."""
    if any(hasattr(each, "reads_sparse_gradients") for each in replaced):
        raise ConfigError("optimizer replaces the one of spelling features: give spelling_features=False")
    optimizers: list[Any] = list(made) if isinstance(made, list | tuple) else [made]
    for each in optimizers:
        if not isinstance(each, torch.optim.Optimizer):
            raise ConfigError(
                f"optimizer returned {type(each).__name__}; it must be a torch.optim.Optimizer, or several"
            )
        for group in each.param_groups:
            if group["lr"] != config.learning_rate:
                raise ConfigError(
                    f"the optimizer's lr ({group['lr']:g}) must be the learning_rate of the settings "
                    f"({config.learning_rate:g}), which the schedule multiplies: give one of both to the other"
                )
    return optimizers


def _transform(parts: StepParts, transform: BatchTransform) -> None:
    """Puts the function next to the text: what wraps `others`, such as a sample of the vocabulary, gets its result."""
    if not hasattr(parts.batches, "others"):
        parts.batches = TransformedBatches(parts.batches, transform)
        return
    outer = parts.batches
    while hasattr(outer.others, "others"):
        outer = outer.others
    outer.others = TransformedBatches(outer.others, transform)


def _name_of(function: Any) -> str:
    """A name by which a resumed run recognizes a function: that of the function, or of the class of an object."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))
