"""The comparison between an exported model and the original."""

import pytest
import torch
from builders import random_model
from torch import Tensor

from minigpt.exporters.parity import TEXT, compare, reference_of
from minigpt.foreign_tokenizers.ids_only import IdsOnly
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

TOKENIZER = Tokenizer.named("bytes")


def model(context: int) -> GPT:
    return random_model(n_positions=context, std=0.5)


@pytest.mark.parametrize("context", [1, 2, 7, 40, 200])
def test_the_reference_is_the_start_of_a_text_and_its_greedy_continuation_within_the_context(context: int) -> None:
    gpt = model(context)
    reference = reference_of(gpt, TOKENIZER)
    assert list(reference.text_ids) == TOKENIZER.encode(TEXT)
    assert 1 <= reference.prompt <= len(reference.ids) <= context
    assert reference.ids[: reference.prompt] == reference.text_ids[: reference.prompt]
    assert len(reference.ids) == min(context, reference.prompt + 16)
    ids = list(reference.ids[: reference.prompt])
    while len(ids) < len(reference.ids):
        ids.append(int(gpt(torch.tensor([ids]))[0, -1].argmax()))
    assert tuple(ids) == reference.ids
    assert torch.equal(reference.logits, gpt(torch.tensor([ids]))[0].detach())


def test_a_difference_is_given_in_logits_and_in_their_standard_deviations() -> None:
    gpt = model(64)
    reference = reference_of(gpt, TOKENIZER)
    changed = reference.logits.clone()
    changed[3, 5] += 0.25
    found = compare("another", lambda ids: changed, reference)
    assert found.difference == pytest.approx(0.25)
    assert found.deviations == pytest.approx(0.25 / float(reference.logits.std(correction=0)))
    assert found.same_ids is None


def silent_bytes(context: int, silent: range) -> GPT:
    """A model that never predicts some tokens: their logits are -1000 for every input, as after an import."""
    gpt = model(context)
    with torch.no_grad():
        gpt.final_norm.weight.fill_(1.0)
        gpt.final_norm.bias.fill_(0.1)
        gpt.token_embedding.weight[silent.start : silent.stop] = -1000 / (0.1 * 16)
    return gpt


def test_tokens_that_are_never_predicted_hide_no_error_and_are_not_in_the_prompt() -> None:
    silent = range(ord("f"), 257)
    gpt = silent_bytes(64, silent)
    reference = reference_of(gpt, TOKENIZER)
    assert reference.logits[:, silent.start :].max() < -900
    assert not set(reference.ids) & set(silent)
    assert list(reference.text_ids) == TOKENIZER.encode(TEXT)
    changed = reference.logits.clone()
    changed[:, : silent.start] += 0.5
    found = compare("another", lambda ids: changed, reference)
    spread = float(reference.logits[:, : silent.start].std(correction=0))
    assert spread < 10 < float(reference.logits.std())
    assert found.deviations == pytest.approx(0.5 / spread, rel=1e-3)


def test_logits_of_tokens_that_are_never_predicted_may_have_any_low_value() -> None:
    reference = reference_of(silent_bytes(64, range(200, 257)), TOKENIZER)
    top = float(reference.logits[4].max())
    for value, difference in ((-torch.inf, 0.0), (-700.0, 0.0), (top - 101, 0.0), (top - 98, 2.0), (top + 5, 105.0)):
        changed = reference.logits.clone()
        changed[4, 201] = value
        assert compare("another", lambda ids, logits=changed: logits, reference).difference == pytest.approx(
            difference, abs=1e-3
        )


def test_greedy_tokens_are_counted_up_to_the_first_difference() -> None:
    gpt = model(64)
    reference = reference_of(gpt, TOKENIZER)
    changed = reference.logits.clone()
    for step in (5, 9):  # the number of new tokens before the changed choice
        row = changed[reference.prompt - 1 + step]
        row[(row.argmax() + 1) % 257] = row.max() + 1
    assert compare("another", lambda ids: changed, reference).greedy == 5
    changed[:] = 0
    assert compare("silent", lambda ids: changed, reference).greedy == 0


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_nan_or_infinite_logit_differs_by_infinity(value: float) -> None:
    def broken(ids: object) -> Tensor:
        return torch.full((len(reference.ids), 257), value)

    reference = reference_of(model(64), TOKENIZER)
    assert compare("broken", broken, reference).difference == torch.inf


@pytest.mark.parametrize("size", [1, 40, 257])
def test_the_reference_of_a_model_without_a_tokenizer_is_ids_from_its_whole_vocabulary(size: int) -> None:
    gpt = random_model(n_positions=128, vocab_size=size, std=0.5)
    reference = reference_of(gpt, Tokenizer(IdsOnly(size, 0)))
    assert len(set(reference.text_ids)) == len(reference.text_ids) == min(size, 48)
    assert min(reference.text_ids) >= 0
    assert size * 0.9 < max(reference.text_ids) + 1 <= size
    assert len(reference.ids) == reference.prompt + 16
    assert compare("itself", lambda ids: gpt(torch.tensor([ids]))[0], reference).greedy == 16
