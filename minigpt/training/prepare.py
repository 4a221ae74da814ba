"""Prepares a model for the training that its settings ask for."""

from minigpt.config import TrainConfig
from minigpt.edges import provided
from minigpt.model.gpt import GPT


def prepare_model(model: GPT, config: TrainConfig) -> None:
    """Lets edges change the new model of a run, in place: freeze weights, or add modules (the seam `prepare_model`).

    Raises: ConfigError for settings that do not fit the model.
    """
    for prepare in provided("prepare_model"):
        prepare(model, config)
