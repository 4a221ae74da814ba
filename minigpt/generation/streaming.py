"""Streaming: continues prompts as text, in pieces of whole characters, with stop strings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation.beam_search import beam_search
from minigpt.generation.decoding import Decoder, GeneratedToken
from minigpt.generation.engines.engine import Engine
from minigpt.generation.engines.resolve import resolve_engine
from minigpt.generation.logits_processors import LogitsProcessor
from minigpt.generation.sampling import Sampler
from minigpt.generation.speculative import Drafter
from minigpt.generation.stopping import StopFilter
from minigpt.model.gpt import GPT, eval_mode
from minigpt.tokenizer.tokenizer import Tokenizer

FinishReason = Literal["end_of_text", "stop", "length"]


@dataclass(frozen=True)
class Piece:
    """One generated token of a row, the text that can be shown with it, and why the row ended, if it did.

    `text` may lag `token`: a character is held back until its last byte, and text that may be the beginning of a stop
    string until this is decided.
    """

    row: int
    text: str
    token: GeneratedToken
    finish_reason: FinishReason | None = None


class _Row:
    """The text of one row, token by token."""

    def __init__(self, row: int, tokenizer: Tokenizer, config: SamplingConfig) -> None:
        self.row, self.tokenizer, self.config = row, tokenizer, config
        self.decoder = tokenizer.decoder()
        self.filter = StopFilter(config.stop, config.until)
        self.n_new = 0

    def add(self, token: GeneratedToken) -> Piece:
        """The piece for this token; it has a finish reason if the row ends."""
        self.n_new += 1
        if token.id == self.tokenizer.end_of_text:
            return self._end(token, "end_of_text")
        text, stopped = self.filter.feed(self.decoder.feed(token.id), may_stop=self.n_new >= self.config.min_new_tokens)
        if stopped:
            return Piece(self.row, text, token, "stop")
        if self.n_new == self.config.max_new_tokens:
            ended = self._end(token, "length")
            return Piece(self.row, text + ended.text, token, ended.finish_reason)
        return Piece(self.row, text, token)

    def _end(self, token: GeneratedToken, reason: FinishReason) -> Piece:
        text, stopped = self.filter.feed(self.decoder.flush())
        return Piece(self.row, text if stopped else text + self.filter.flush(), token, "stop" if stopped else reason)


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids of a prompt; an empty prompt becomes one end-of-text, the start of a document."""
    return tokenizer.encode(prompt) or [tokenizer.end_of_text]


def generate_pieces(
    model: GPT | Engine,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    config: SamplingConfig,
    *,
    processors: Sequence[LogitsProcessor] = (),
    sampler: Sampler | None = None,
    alternatives: int | None = None,
    drafter: Drafter | None = None,
) -> Iterator[Piece]:
    """Continues every prompt `config.samples` times in parallel, piece by piece.

    Row r continues prompt r // samples. It ends at end-of-text, before a stop string, after the sentence, paragraph or
    line of `until`, or after `max_new_tokens`; its last piece has a finish reason. `processors` change the logits (see
    `LogitsProcessor`). A `sampler`, which has its own processors, replaces the one made from `config`.
    Raises: ConfigError for settings that do not fit the model or each other; GenerationError for NaN or infinite
    logits.
    """
    if sampler is not None and processors:
        raise ConfigError("processors must be given to the Sampler if generate_pieces gets one")
    engine = resolve_engine(model) if isinstance(model, GPT) else model
    sampler = sampler or Sampler(config, tokenizer, processors=processors)
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    with eval_mode(engine.model):
        if config.beams > 1:
            yield from _search(engine, tokenizer, encoded, config, sampler)
        else:
            yield from _sample(engine, tokenizer, encoded, config, sampler, alternatives, drafter)


def _sample(
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
        for row, tokens in zip(decoder.rows, decoder.advance(), strict=True):
            for token in tokens:
                piece = rows[row].add(token)
                yield piece
                if piece.finish_reason is not None:
                    ended.add(row)
                    break
        decoder.drop(ended)


def _search(
    engine: Engine, tokenizer: Tokenizer, prompts: list[list[int]], config: SamplingConfig, sampler: Sampler
) -> Iterator[Piece]:
    """The best continuations of each prompt, after its search is complete."""
    for number, prompt in enumerate(prompts):
        found = beam_search(engine, prompt, config, sampler, tokenizer.end_of_text, tokenizer.vocab_size)
        for index, (_, ids) in enumerate(found[: config.samples]):
            row = _Row(number * config.samples + index, tokenizer, config)
            for id in ids:
                piece = row.add(GeneratedToken(id))
                yield piece
                if piece.finish_reason is not None:
                    break


def generate_text(
    model: GPT | Engine,
    tokenizer: Tokenizer,
    prompt: str,
    config: SamplingConfig,
    *,
    processors: Sequence[LogitsProcessor] = (),
) -> Iterator[str]:
    """Continues one prompt as text, in pieces of whole characters.

    Raises: ConfigError for several samples, which need `generate_pieces`; GenerationError for NaN or infinite logits.
    """
    if config.samples != 1:
        raise ConfigError(f"samples ({config.samples}) must be 1 here; use generate_pieces for several")
    for piece in generate_pieces(model, tokenizer, [prompt], config, processors=processors):
        if piece.text:
            yield piece.text
