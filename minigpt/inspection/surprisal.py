"""The surprisal of each token of one validation passage."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from minigpt.inspection.activations import predict
from minigpt.model.gpt import GPT

_PASSAGE_TOKENS = 96


def passage(validation: npt.NDArray[Any], context: int) -> list[int]:
    """The first tokens of the validation data, whose surprisal is recorded during a run."""
    return validation[: min(_PASSAGE_TOKENS, context)].tolist()


def surprisal(model: GPT, ids: Sequence[int]) -> list[float]:
    """The loss of each token but the first, rounded to three decimals. Units: nats."""
    return [round(-logprob, 3) for logprob in predict(model, ids, top=1).logprobs[:-1].tolist()]
