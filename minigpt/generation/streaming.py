"""From ids to text as it grows: whole characters, stop strings, one string in the end; it knows no terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation.beam_search import beam_search
from minigpt.generation.decoding import Choice, Decoder
from minigpt.generation.engines.engine import Engine
from minigpt.generation.engines.resolve import resolve_engine
from minigpt.generation.sampling import Sampler
from minigpt.generation.speculative import Drafter
from minigpt.generation.stopping import StopFilter
from minigpt.model.gpt import GPT, eval_mode
from minigpt.tokenizer.tokenizer import Tokenizer

FinishReason = Literal["end_of_text", "stop", "length"]


@dataclass(frozen=True)
class Piece:
    """What one row gained in one step: whole characters of text, the token behind them, and why the row ended, if so.

    `text` may lag behind `choice`: a character is held back until all its bytes are there, and text that might be the
    beginning of a stop string until it is known not to be.
    """

    row: int
    text: str
    choice: Choice | None
    finish_reason: FinishReason | None = None


class _Row:
    """The text of one row as its ids come."""

    def __init__(self, row: int, tokenizer: Tokenizer, config: SamplingConfig) -> None:
        self.row, self.tokenizer, self.config = row, tokenizer, config
        self.decoder = tokenizer.decoder()
        self.filter = StopFilter(config.stop, config.until)
        self.n_new = 0

    def add(self, choice: Choice) -> Piece:
        """The piece that a token makes; it has a finish reason where it ends the row."""
        self.n_new += 1
        if choice.id == self.tokenizer.end_of_text:
            return self._end(choice, "end_of_text")
        text, stopped = self.filter.feed(
            self.decoder.feed(choice.id), may_stop=self.n_new >= self.config.min_new_tokens
        )
        if stopped:
            return Piece(self.row, text, choice, "stop")
        if self.n_new == self.config.max_new_tokens:
            ended = self._end(choice, "length")
            return Piece(self.row, text + ended.text, choice, ended.finish_reason)
        return Piece(self.row, text, choice)

    def _end(self, choice: Choice, reason: FinishReason) -> Piece:
        text, stopped = self.filter.feed(self.decoder.flush())
        return Piece(self.row, text if stopped else text + self.filter.flush(), choice, "stop" if stopped else reason)


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids a continuation starts from; an empty prompt is the start of a document, one end-of-text."""
    return tokenizer.encode(prompt) or [tokenizer.end_of_text]


def generate_pieces(
    model: GPT | Engine,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    config: SamplingConfig,
    *,
    sampler: Sampler | None = None,
    alternatives: int | None = None,
    drafter: Drafter | None = None,
) -> Iterator[Piece]:
    """`config.samples` continuations of every prompt, all side by side, as they grow; each ends by a finish reason.

    Row r continues prompt r // samples. It ends at end-of-text, before a stop string or behind what `until` names, or
    after `max_new_tokens`.
    Raises: ConfigError; GenerationError where the model's logits are no longer numbers.
    """
    engine = resolve_engine(model) if isinstance(model, GPT) else model
    sampler = sampler or Sampler(config, tokenizer)
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    with eval_mode(engine.model):
        if config.beams > 1:
            yield from _beams(engine, tokenizer, encoded, config, sampler)
        else:
            yield from _draws(engine, tokenizer, encoded, config, sampler, alternatives, drafter)


def _draws(
    engine: Engine, tokenizer: Tokenizer, prompts: list[list[int]], config: SamplingConfig, sampler: Sampler,
    alternatives: int | None, drafter: Drafter | None,
) -> Iterator[Piece]:  # fmt: skip
    decoder = Decoder(
        engine,
        [prompt for prompt in prompts for _ in range(config.samples)],
        sampler,
        samples=list(range(config.samples)) * len(prompts),
        vocab_size=tokenizer.vocab_size,
        keep_first=config.keep_first,
        alternatives=alternatives,
        drafter=drafter,
    )
    rows = [_Row(row, tokenizer, config) for row in decoder.rows]
    while decoder.rows:
        ended = set()
        for row, choices in zip(decoder.rows, decoder.advance(), strict=True):
            for choice in choices:
                piece = rows[row].add(choice)
                yield piece
                if piece.finish_reason is not None:
                    ended.add(row)
                    break
        decoder.drop(ended)


def _beams(
    engine: Engine, tokenizer: Tokenizer, prompts: list[list[int]], config: SamplingConfig, sampler: Sampler
) -> Iterator[Piece]:
    """The best of each search, once it is over."""
    for number, prompt in enumerate(prompts):
        found = beam_search(engine, prompt, config, sampler, tokenizer.end_of_text, tokenizer.vocab_size)
        for place, (_, ids) in enumerate(found[: config.samples]):
            row = _Row(number * config.samples + place, tokenizer, config)
            for id in ids:
                piece = row.add(Choice(id))
                yield piece
                if piece.finish_reason is not None:
                    break


def generate_text(model: GPT | Engine, tokenizer: Tokenizer, prompt: str, config: SamplingConfig) -> Iterator[str]:
    """The continuation of a prompt in pieces of whole characters, as they come.

    Raises: ConfigError for several samples, whose pieces a plain string could not tell apart; GenerationError.
    """
    if config.samples != 1:
        raise ConfigError(f"samples ({config.samples}) must be 1 here; generate_pieces tells several apart")
    for piece in generate_pieces(model, tokenizer, [prompt], config):
        if piece.text:
            yield piece.text
