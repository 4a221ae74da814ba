"""What an inspection shows first: the token and the head with the largest measures, never a sink."""

import math

import pytest
import torch
from builders import new_model

from minigpt.inspection.activations import Inspection, Predictions, inspect
from minigpt.inspection.json_form import inspection_json
from minigpt.inspection.opening import opening
from minigpt.tokenizer.tokenizer import Tokenizer

COUNT, LAYERS, HEADS = 9, 3, 2


def made(attention: torch.Tensor, gains: dict[int, float]) -> Inspection:
    """An inspection with these attention weights, and these gains of the last layer by position."""
    logprobs = torch.full((len(attention), COUNT), -9.0)
    for position, gain in gains.items():
        logprobs[-1, position] += gain
    logprobs[:, -1] = math.nan
    empty = torch.zeros(len(attention), COUNT)
    lens = Predictions(empty, empty, empty, logprobs, empty)
    ids = torch.arange(COUNT)
    return Inspection(ids, attention, lens, empty[0], empty[0], empty, empty, empty)


def even() -> torch.Tensor:
    weights = torch.ones(COUNT, COUNT).tril() / torch.arange(1, COUNT + 1)[:, None]
    return weights.expand(LAYERS, HEADS, -1, -1).clone()


def look(weights: torch.Tensor, layer: int, head: int, position: int, at: int, weight: float = 0.9) -> None:
    """Lets a head put most weight of a position on one token."""
    row = torch.full((position + 1,), (1 - weight) / position)
    row[at] = weight
    weights[layer, head, position, : position + 1] = row


def test_it_is_where_a_head_looks_for_a_token_and_the_layers_gain() -> None:
    weights = even()
    look(weights, 1, 1, 6, 2)
    look(weights, 2, 0, 5, 3)
    assert opening(made(weights, {5: 1.0, 6: 2.0})) == (1, 1, 6)
    assert opening(made(weights, {5: 3.0, 6: 1.0})) == (2, 0, 5)
    assert opening(made(weights, {5: 1.0})) == (2, 0, 5)  # no gain at 6


def test_sinks_the_token_itself_and_the_one_before_do_not_count() -> None:
    weights = even()
    for position in range(3, COUNT):
        look(weights, 0, 0, position, 0, 0.99)  # the first token, from everywhere
        look(weights, 0, 1, position, position, 0.99)
        look(weights, 1, 0, position, position - 1, 0.99)
    for position in range(4, COUNT):
        look(weights, 1, 1, position, 2, 0.99)  # a period
    look(weights, 2, 0, 7, 4, 0.4)
    gains = dict.fromkeys(range(3, COUNT - 1), 1.0)
    assert opening(made(weights, gains)) == (2, 0, 7)


def test_a_given_layer_or_head_stays() -> None:
    weights = even()
    look(weights, 1, 1, 6, 2)
    look(weights, 2, 0, 5, 3, 0.5)
    found = made(weights, {5: 1.0, 6: 2.0})
    assert opening(found, 2) == (2, 0, 5)
    assert opening(found, head=1)[:2] == (0, 1)
    assert opening(found, 1, 1) == (1, 1, 6)


def test_without_a_measure_it_is_the_first_head_and_the_last_token() -> None:
    assert opening(made(even(), {5: 1.0})) == (0, 0, COUNT - 1)
    weights = even()
    look(weights, 1, 1, 6, 2)
    assert opening(made(weights, {})) == (0, 0, COUNT - 1)


def test_a_model_of_one_layer_has_only_the_heads() -> None:
    weights = even()[:1]
    look(weights, 0, 1, 6, 2)
    assert opening(made(weights, {})) == (0, 1, 6)


@pytest.mark.parametrize("length", range(1, 7))
def test_texts_of_any_length_and_the_data_of_the_page(length: int) -> None:
    found = inspect(new_model(scale=10, n_layer=2), list(range(length)), top=3)
    layer, head, token = opening(found)
    assert token < length
    data = inspection_json(found, Tokenizer.named("bytes"), "m")
    assert (data["layer"], data["head"], data["token"]) == (layer, head, token)
