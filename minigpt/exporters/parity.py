"""Compares the logits and greedy choices of an exported model, in another program, with the original's."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.foreign_tokenizers.ids_only import IdsOnly
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from minigpt.tokenizer.tokenizer import Tokenizer

# Letters, punctuation, digits, accents, and characters of two, three and four bytes.
TEXT = "The quick brown fox — “naïve”, 1,234 €? — said: it's 日本語 🙂\n\n  Once upon a time, there was"
_PROMPT, _CONTINUATION = 48, 16
_RANGE = 100.0  # a logit this far below the largest has a probability of 0, so its exact value does not matter

Run = Callable[[Sequence[int]], Tensor]  # ids (T,) -> logits (T, V)
Tokenize = Callable[[str], list[int]]


@dataclass(frozen=True)
class Reference:
    """The original's results: TEXT's ids, a prompt with its greedy continuation (`ids`), and the logits after each.

    Without a tokenizer, `text_ids` are ids from the whole vocabulary. `prompt` is the number of prompt tokens. Rows of
    the embedding after the tokenizer's last token are no part of V.
    Shapes: logits (T, V).
    """

    text_ids: tuple[int, ...]
    ids: tuple[int, ...]
    prompt: int
    logits: Tensor


@dataclass(frozen=True)
class Parity:
    """How close the logits of another program, `by`, are. These are the keys of `minigpt export --json`.

    `difference` is the largest difference of a logit, and `deviations` the same in standard deviations of the logits.
    Both ignore logits more than 100 below the largest, if they are that in the program, too. The
    program chooses the first `greedy` of the `of` tokens of the original's greedy continuation. `same_ids` is whether
    the program's tokenizer gives the original's ids; None if it has no tokenizer.
    """

    by: str
    difference: float
    deviations: float
    greedy: int
    of: int
    same_ids: bool | None = None


@torch.no_grad()
def reference_of(model: GPT, tokenizer: Tokenizer) -> Reference:
    """The original's results for a text that fits into its context, without the tokens that it never predicts.

    Those were not in its training text, such as the bytes in a converted model over characters. For a model without a
    tokenizer, the text is ids from the whole vocabulary.
    """
    device = model.token_embedding.weight.device
    context, size = model.config.n_positions, tokenizer.vocab_size
    text_ids = _ids_of(tokenizer)
    text_logits = model(torch.tensor([text_ids[:context]], device=device))[0, :, :size].float()  # (T, V)
    never = (text_logits <= _lowest(text_logits)).all(dim=0).tolist()  # (V,)
    known = [id for id in text_ids if not never[id]] or text_ids
    ids = known[: min(_PROMPT, (context + 1) // 2)]
    prompt = len(ids)
    cache = KVCache(model.config, 1, device=device, dtype=model.token_embedding.weight.dtype)
    new = ids
    while len(ids) < min(context, prompt + _CONTINUATION):
        features = model.features(torch.tensor([new], device=device), cache)  # (1, T, C)
        new = [int(model.logits(features[0, -1])[:size].argmax())]
        ids = ids + new
    logits = model(torch.tensor([ids], device=device))[0, :, :size]  # (T, V)
    return Reference(tuple(text_ids), tuple(ids), prompt, logits.float().cpu())


@torch.no_grad()
def compare(by: str, run: Run, reference: Reference, tokenize: Tokenize | None = None) -> Parity:
    """How close a program, named `by`, is to the original; a NaN or infinite logit of either differs by infinity."""
    logits = run(reference.ids)[:, : reference.logits.shape[1]].float()  # (T, V)
    lowest = _lowest(reference.logits)
    differences = torch.maximum(logits, lowest) - torch.maximum(reference.logits, lowest)
    difference = float(differences.abs().nan_to_num(nan=torch.inf, posinf=torch.inf).max())
    near = reference.logits[reference.logits > lowest]
    chosen = logits.argmax(dim=-1)[reference.prompt - 1 : -1].tolist()
    expected = reference.ids[reference.prompt :]
    # Up to the first different token both have read the same ids, so these are the tokens it would have generated.
    same = next((i for i, pair in enumerate(zip(chosen, expected, strict=True)) if pair[0] != pair[1]), len(expected))
    is_finite = math.isfinite(difference)  # else the model's own logits may be NaN, and have no deviation
    deviations = difference / max(float(near.std(correction=0)), 1e-30) if is_finite else math.inf
    same_ids = None if tokenize is None else tokenize(TEXT) == list(reference.text_ids)
    return Parity(by, difference, deviations, same, len(expected), same_ids)


def _ids_of(tokenizer: Tokenizer) -> list[int]:
    """TEXT's ids, or different ids from the whole vocabulary of a model without a tokenizer."""
    if not isinstance(tokenizer.vocabulary, IdsOnly):
        return tokenizer.encode(TEXT)
    size = tokenizer.vocab_size
    count = min(size, _PROMPT)
    return [index * size // count for index in range(count)]


def _lowest(logits: Tensor) -> Tensor:
    """In each row, the logit below which tokens have a probability of 0. Shapes: (T, V) -> (T, 1)."""
    return logits.amax(dim=-1, keepdim=True) - _RANGE
