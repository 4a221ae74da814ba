"""Generation in three layers: ids step by step, pieces of text, one string; it knows no files and no terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation.sampling import choose
from minigpt.model.attention import KVCache
from minigpt.model.gpt import GPT
from minigpt.text.tokenizer import Tokenizer

FinishReason = Literal["end_of_text", "stop", "length"]


def window_start(length: int, n_positions: int) -> int:
    """The first of `length` tokens that the model sees when it predicts the next: 0 until they outgrow the context.

    From then on the window slides by half a context at a time: GPT-2's positions are learned and absolute, so every
    slide moves them all and the window is computed anew. Sliding by halves costs that once per n_positions / 2
    tokens and leaves between n_positions / 2 and n_positions tokens in sight.
    """
    stride = max(1, n_positions // 2)
    excess = max(0, length - n_positions)
    return -(-excess // stride) * stride


def generate(model: GPT, ids: Tensor, config: SamplingConfig, *, vocab_size: int | None = None) -> Iterator[Tensor]:
    """The tokens that continue `ids`, one step at a time, `max_new_tokens` of them; stopping sooner is the caller's.

    Only the first `vocab_size` ids are drawn: a vocabulary may be padded beyond what its tokenizer knows.

    Shapes: ids (B, T) int64 -> (B,) int64 per step.
    Raises: ConfigError for an empty prompt: a model continues something, an end-of-text at least.
    """
    yield from _steps(model, ids, config, vocab_size, use_cache=True)


def generate_uncached(model: GPT, ids: Tensor, config: SamplingConfig) -> Iterator[Tensor]:
    """The same tokens by the plain loop, the whole window through the model for every token: the oracle in tests."""
    yield from _steps(model, ids, config, None, use_cache=False)


@torch.inference_mode()
def _steps(
    model: GPT, ids: Tensor, config: SamplingConfig, vocab_size: int | None, *, use_cache: bool
) -> Iterator[Tensor]:
    batch, length = ids.shape
    if length == 0:
        raise ConfigError("the prompt is empty (0 tokens); start from the tokenizer's end_of_text instead")
    weight = model.token_embedding.weight
    n_positions = model.config.n_positions
    generator = None if config.seed is None else torch.Generator(weight.device).manual_seed(config.seed)
    tokens = torch.empty(batch, length + config.max_new_tokens, dtype=torch.int64, device=weight.device)  # (B, T)
    tokens[:, :length] = ids
    cache = KVCache(model.config, batch, device=weight.device, dtype=weight.dtype) if use_cache else None
    seen_from, seen_to = 0, 0  # the tokens that the cache holds
    was_training = model.training
    model.eval()
    try:
        for end in range(length, length + config.max_new_tokens):
            start = window_start(end, n_positions)
            if cache is None:
                new = tokens[:, start:end]
            elif start == seen_from:
                new = tokens[:, seen_to:end]
            else:
                cache.reset()
                new = tokens[:, start:end]
            features = model.features(new, cache)  # (B, T, C)
            seen_from, seen_to = start, end
            logits = model.logits(features[:, -1])[:, :vocab_size]  # (B, V)
            chosen = choose(logits, config, generator)  # (B,)
            tokens[:, end] = chosen
            yield chosen
    finally:
        model.train(was_training)


@dataclass(frozen=True)
class Piece:
    """What one row gained in one step: whole characters of text, the id behind them, and why the row ended, if so.

    `text` may lag behind `id`: a character is held back until all its bytes are there, and text that might be the
    beginning of a stop string until it is known not to be.
    """

    row: int
    text: str
    id: int | None
    finish_reason: FinishReason | None = None


class StopFilter:
    """Cuts a stream of text before the first of several stop strings, wherever the pieces' borders fall."""

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise ConfigError("a stop string is empty (''); give the text to stop before")
        self.stops = tuple(stops)
        self.held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop string has come."""
        self.held += text
        found = [at for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if found:
            shown, self.held = self.held[: min(found)], ""
            return shown, True
        keep = max((self._overlap(stop) for stop in self.stops), default=0)
        cut = len(self.held) - keep
        shown, self.held = self.held[:cut], self.held[cut:]
        return shown, False

    def flush(self) -> str:
        """What was held back, once nothing more comes."""
        shown, self.held = self.held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        longest = min(len(stop) - 1, len(self.held))
        return next((size for size in range(longest, 0, -1) if self.held.endswith(stop[:size])), 0)


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids a continuation starts from; an empty prompt is the start of a document, one end-of-text."""
    return tokenizer.encode(prompt) or [tokenizer.end_of_text]


def generate_pieces(model: GPT, tokenizer: Tokenizer, prompt: str, config: SamplingConfig) -> Iterator[Piece]:
    """`config.samples` continuations of one prompt, drawn together, as they grow; each row ends by a finish reason.

    A row ends at end-of-text, before the first stop string, or after `max_new_tokens`.
    """
    ids = encode_prompt(tokenizer, prompt)
    rows = torch.tensor([ids] * config.samples, device=model.token_embedding.weight.device)  # (B, T)
    decoders = [tokenizer.decoder() for _ in range(config.samples)]
    filters = [StopFilter(config.stop) for _ in range(config.samples)]
    running = set(range(config.samples))
    for chosen in generate(model, rows, config, vocab_size=tokenizer.vocab_size):
        new_ids = chosen.tolist()
        for row in sorted(running):
            if new_ids[row] == tokenizer.end_of_text:
                text, stopped = filters[row].feed(decoders[row].flush())
                yield Piece(row, text if stopped else text + filters[row].flush(), new_ids[row], "end_of_text")
                running.remove(row)
                continue
            text, stopped = filters[row].feed(decoders[row].feed(new_ids[row]))
            yield Piece(row, text, new_ids[row], "stop" if stopped else None)
            if stopped:
                running.remove(row)
        if not running:
            return
    for row in sorted(running):
        text, stopped = filters[row].feed(decoders[row].flush())
        yield Piece(row, text if stopped else text + filters[row].flush(), None, "stop" if stopped else "length")


def generate_text(model: GPT, tokenizer: Tokenizer, prompt: str, config: SamplingConfig) -> Iterator[str]:
    """The continuation of a prompt in pieces of whole characters, as they come.

    Raises: ConfigError for several samples, whose pieces a plain string could not tell apart.
    """
    if config.samples != 1:
        raise ConfigError(f"samples ({config.samples}) must be 1 here; generate_pieces tells several apart")
    for piece in generate_pieces(model, tokenizer, prompt, config):
        if piece.text:
            yield piece.text
