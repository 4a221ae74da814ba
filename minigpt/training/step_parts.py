"""What a training step consists of: plain PyTorch, as far as no edge replaces a part."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from minigpt.config import TrainConfig
from minigpt.data.batches import UNSCORED
from minigpt.data.corpus import Corpus
from minigpt.device import to_device
from minigpt.edges import provided
from minigpt.errors import ConfigError
from minigpt.model.gpt import GPT, accelerate
from minigpt.training.loss import LossModel
from minigpt.training.memory import checkpoint_blocks
from minigpt.training.optimizers import build_optimizers
from minigpt.training.world import World


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Some rows of a step's batch: inputs and targets, (B, T) int64 each.

    `scored` (N,) int64 are the positions in the flattened targets that count; None if all do. `more` are further
    arguments of the loss.
    """

    inputs: Tensor
    targets: Tensor
    scored: Tensor | None = None
    more: tuple[Tensor, ...] = ()

    @property
    def n_scored(self) -> int:
        """The number of targets that count."""
        return self.targets.numel() if self.scored is None else len(self.scored)

    def arguments(self, device: torch.device) -> list[Tensor | None]:
        """The arguments of the loss, on a device."""
        tensors = self.inputs, self.targets, self.scored, *self.more
        return [None if tensor is None else to_device(tensor, device) for tensor in tensors]


class Batches(Protocol):
    """Where the micro-batches of a run come from."""

    @property
    def scores_all(self) -> bool:
        """Whether every target counts."""

    def read(self, step: int, rows: range, height: float) -> MicroBatch:
        """Some rows of a step's batch; `height` is that of the learning rate's schedule, which falls from 1 to 0."""


class CorpusBatches:
    """Micro-batches of a corpus, as pure functions of the seed, the step and the rows."""

    def __init__(self, corpus: Corpus, config: TrainConfig) -> None:
        assert config.context_length is not None
        self.corpus, self.loss_on = corpus, config.scored_role
        self.size, self.context, self.seed = config.sequences_per_step, config.context_length, config.seed

    @property
    def scores_all(self) -> bool:
        return self.corpus.scores_all(self.loss_on)

    def read(self, step: int, rows: range, height: float) -> MicroBatch:
        inputs, targets = self.tensors(step, rows, height)
        scored = None if self.scores_all else (targets.flatten() != UNSCORED).nonzero().flatten()
        return MicroBatch(inputs, targets, scored)

    def tensors(self, step: int, rows: range, height: float) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Inputs and targets, of which those that do not count are UNSCORED: (B, T) int64 each."""
        return self.corpus.batch(step, self.size, self.context, self.seed, rows, self.loss_on)


@dataclass
class StepParts:
    """What a `TrainStep` calls. At the seam `step_parts`, edges provide functions that replace parts in place.

    Each is called as `change(parts, config, given)`. `given` has the arguments of `train()` that the spine does not
    know, by name, of which a function removes its own. `context` makes a context for each step, before which the
    optimizers' groups get the learning rate ("lr"): that of the settings' schedule, or `learning_rate` of the steps
    taken and the progress. A run is resumed only if the same is `given`, by name.
    """

    model: GPT
    corpus: Corpus
    batches: Batches
    loss: LossModel
    optimizers: list[torch.optim.Optimizer]
    world: World
    context: Callable[[], AbstractContextManager[object]] = nullcontext
    learning_rate: Callable[[int, float], float] | None = None
    given: str = ""


def build_step_parts(
    model: GPT,
    corpus: Corpus,
    config: TrainConfig,
    dtype: torch.dtype = torch.float32,
    world: World | None = None,
    **given: Any,
) -> StepParts:
    """The parts of a step on the model's device, with products in `dtype`. It changes the model in place.

    Raises: ConfigError for an argument that no installed edge takes, and for what edges refuse.
    """
    world = world or World()
    accelerate(model)  # before anything wraps the modules' forward passes
    if config.checkpoint_activations == "on":
        checkpoint_blocks(model)
    world.shard(model, config, model.token_embedding.weight.device)  # before optimizers read its parameters
    parts = StepParts(
        model, corpus, CorpusBatches(corpus, config), LossModel(model), build_optimizers(model, config, dtype), world
    )
    for change in provided("step_parts"):
        change(parts, config, given)
    if unused := [name for name, value in given.items() if value is not None]:
        raise ConfigError(f"{unused[0]} cannot be given to train(): no installed edge uses it")
    return parts
