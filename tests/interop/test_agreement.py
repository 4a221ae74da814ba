"""The comparison of an export with the model that it was made of."""

import pytest
import torch
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.interop.agreement import TEXT, compare, reference_of
from minigpt.model.gpt import GPT
from minigpt.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.named("bytes")


def model(context: int) -> GPT:
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(vocab_size=257, n_positions=context, n_embd=16, n_layer=2, n_head=2)).eval()
    for parameter in gpt.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return gpt


@pytest.mark.parametrize("context", [1, 2, 7, 40, 200])
def test_the_reference_is_a_texts_start_and_its_greedy_continuation_within_the_context(context: int) -> None:
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


def test_the_model_agrees_with_itself_exactly() -> None:
    gpt = model(64)
    found = compare("itself", lambda ids: gpt(torch.tensor([ids]))[0], reference_of(gpt, TOKENIZER), TOKENIZER.encode)
    assert (found.difference, found.deviations, found.greedy, found.of, found.same_ids) == (0, 0, 16, 16, True)


def test_a_difference_is_told_in_logits_and_in_their_standard_deviations() -> None:
    gpt = model(64)
    reference = reference_of(gpt, TOKENIZER)
    changed = reference.logits.clone()
    changed[3, 5] += 0.25
    found = compare("another", lambda ids: changed, reference)
    assert found.difference == pytest.approx(0.25)
    assert found.deviations == pytest.approx(0.25 / float(reference.logits.std()))
    assert found.same_ids is None


def test_greedy_tokens_count_up_to_the_first_that_differs() -> None:
    gpt = model(64)
    reference = reference_of(gpt, TOKENIZER)
    changed = reference.logits.clone()
    for step in (5, 9):  # what is chosen after the prompt and so many new tokens
        row = changed[reference.prompt - 1 + step]
        row[(row.argmax() + 1) % 257] = row.max() + 1
    assert compare("another", lambda ids: changed, reference).greedy == 5
    changed[:] = 0
    assert compare("silent", lambda ids: changed, reference).greedy == 0


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_is_infinitely_far(value: float) -> None:
    def broken(ids: object) -> Tensor:
        return torch.full((len(reference.ids), 257), value)

    reference = reference_of(model(64), TOKENIZER)
    assert compare("broken", broken, reference).difference == torch.inf


def test_other_ids_are_told() -> None:
    gpt = model(64)
    run = lambda ids: gpt(torch.tensor([ids]))[0]  # noqa: E731
    assert compare("x", run, reference_of(gpt, TOKENIZER), lambda text: [1]).same_ids is False
