"""Adapters: trained weights that are added to those of a base model. An edge reads and writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from minigpt.config import GPTConfig, TrainConfig
from minigpt.edges import not_installed, provided
from minigpt.errors import CheckpointError
from minigpt.model.gpt import GPT
from minigpt.storage.files import exists
from minigpt.storage.folder import Content
from minigpt.storage.names import ADAPTER_CONFIG, WEIGHTS
from minigpt.storage.run_record import AdapterBase
from minigpt.tokenizer.tokenizer import Tokenizer


class AdapterFormat(Protocol):
    """Reads and writes adapters (the seam `adapter`). Its methods raise CheckpointError for what is damaged."""

    def is_in(self, model: GPT) -> bool:
        """Whether such an adapter was added to the model."""

    def config(self, model: GPT, base: AdapterBase | None) -> dict[str, Any]:
        """The content of the adapter_config.json of the model's adapter."""

    def weights(self, model: GPT, base: AdapterBase | None, metadata: Mapping[str, str]) -> Content:
        """The content of the file of its weights."""

    def read_weights(self, directory: Path, model: GPT) -> dict[str, Tensor]:
        """The weights in a folder, under the names of `trained_state`."""

    def record_base(self, directory: Path, model: GPT) -> AdapterBase:
        """How the files of an adapter name its base model."""

    def load_base(self, directory: Path, base: AdapterBase | None, config: TrainConfig) -> GPT:
        """The base model of a run, to be trained on; an error if it is missing or has changed."""

    def load(
        self, path: Path, device: torch.device, dtype: torch.dtype, checkpoints: Path | None, base: Path | None
    ) -> tuple[GPT, Tokenizer, tuple[str, ...]]:
        """The base model (`base`, or the one that the adapter names) with the adapter merged into it, and notes."""

    def describe(self, path: Path, checkpoints: Path | None) -> tuple[GPTConfig, Tokenizer, tuple[str, ...]]:
        """The same without weights."""

    def facts(self, path: Path) -> tuple[dict[str, Any], str]:
        """What `minigpt info` tells of an adapter: as JSON, with its number of `parameters`, and as a line of text."""


def is_adapter(directory: Path) -> bool:
    """Whether a folder holds an adapter and not a whole model."""
    return exists(directory / ADAPTER_CONFIG) and not exists(directory / WEIGHTS)


def adapter_format() -> AdapterFormat:
    """What reads and writes adapters.

    Raises: CheckpointError if no installed edge does.
    """
    for each in provided("adapter"):
        return cast(AdapterFormat, each)
    raise CheckpointError(f"an adapter can be neither read nor written; {not_installed('adapter')}")


def adapter_of(model: GPT) -> AdapterFormat | None:
    """The format of the adapter that was added to a model; None for a model without one."""
    return next((each for each in provided("adapter") if each.is_in(model)), None)


def trained_state(model: GPT) -> dict[str, Tensor]:
    """What a run saves of its model: all weights, or of a model with an adapter only those that are trained."""
    if adapter_of(model) is None:
        return model.state_dict()
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def load_trained_state(model: GPT, tensors: Mapping[str, Tensor]) -> None:
    """Copies tensors, named as in `trained_state`, into the model."""
    if adapter_of(model) is None:
        model.load_state_dict(tensors)
        return
    for name, tensor in trained_state(model).items():
        tensor.copy_(tensors[name])
