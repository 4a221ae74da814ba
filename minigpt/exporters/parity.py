"""Whether an exported model says what the original says: by its logits, in the program that it was exported for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from minigpt.tokenizer.tokenizer import Tokenizer

# Words, punctuation, digits, accents, and characters of two, three and four bytes.
TEXT = "The quick brown fox — “naïve”, 1,234 €? — said: it's 日本語 🙂\n\n  Once upon a time, there was"
_PROMPT, _CONTINUATION = 48, 16
_NEAR = 100.0  # a logit so far below the largest is a probability of 0, whatever it is exactly

Run = Callable[[Sequence[int]], Tensor]  # ids (T,) -> logits (T, V)
Tokenize = Callable[[str], list[int]]


@dataclass(frozen=True)
class Reference:
    """What the original says: TEXT's ids, those it starts with and their greedy continuation, the logits at each.

    Shapes: logits (T, V).
    """

    text_ids: tuple[int, ...]
    ids: tuple[int, ...]
    prompt: int
    logits: Tensor


@dataclass(frozen=True)
class Parity:
    """How near another program's logits come: the largest difference, also in standard deviations of the logits.

    Both are of the words within 100 of the largest logit; the others only have to stay below that.
    `greedy` is how many tokens of the original's greedy continuation that program would have chosen too, of `of`;
    `same_ids`, where the program has a tokenizer of its own, is whether that gives the original's ids.
    """

    by: str
    difference: float
    deviations: float
    greedy: int
    of: int
    same_ids: bool | None = None


@torch.no_grad()
def reference_of(model: GPT, tokenizer: Tokenizer) -> Reference:
    """What a model says about a text that fits into its context, without the words that it never predicts.

    Those were not in what it was trained on, as the bytes of a model of characters that lacked them.
    """
    device = model.token_embedding.weight.device
    context = model.config.n_positions
    text_ids = tokenizer.encode(TEXT)
    heard = model(torch.tensor([text_ids[:context]], device=device))[0].float()  # (T, V)
    never = (heard <= _lowest(heard)).all(dim=0).tolist()  # (V,)
    known = [id for id in text_ids if not never[id]] or text_ids
    ids = known[: min(_PROMPT, (context + 1) // 2)]
    prompt = len(ids)
    cache = KVCache(model.config, 1, device=device, dtype=model.token_embedding.weight.dtype)
    new = ids
    while len(ids) < min(context, prompt + _CONTINUATION):
        features = model.features(torch.tensor([new], device=device), cache)  # (1, T, C)
        new = [int(model.logits(features[0, -1]).argmax())]
        ids = ids + new
    logits = model(torch.tensor([ids], device=device))[0]  # (T, V)
    return Reference(tuple(text_ids), tuple(ids), prompt, logits.float().cpu())


@torch.no_grad()
def compare(by: str, run: Run, reference: Reference, tokenize: Tokenize | None = None) -> Parity:
    """How near a program comes to the original; a logit that is no number is infinitely far."""
    logits = run(reference.ids).float()  # (T, V)
    lowest = _lowest(reference.logits)
    apart = torch.maximum(logits, lowest) - torch.maximum(reference.logits, lowest)
    difference = float(apart.abs().nan_to_num(nan=torch.inf, posinf=torch.inf).max())
    near = reference.logits[reference.logits > lowest]
    chosen = logits.argmax(dim=-1)[reference.prompt - 1 : -1].tolist()
    expected = reference.ids[reference.prompt :]
    # Up to the first token that differs both have read the same ids, so that this is what it would have generated.
    same = next((i for i, pair in enumerate(zip(chosen, expected, strict=True)) if pair[0] != pair[1]), len(expected))
    deviations = difference / max(float(near.std(correction=0)), 1e-30)
    same_ids = None if tokenize is None else tokenize(TEXT) == list(reference.text_ids)
    return Parity(by, difference, deviations, same, len(expected), same_ids)


def _lowest(logits: Tensor) -> Tensor:
    """The logit in each row below which words have a probability of 0. Shapes: (T, V) -> (T, 1)."""
    return logits.amax(dim=-1, keepdim=True) - _NEAR
