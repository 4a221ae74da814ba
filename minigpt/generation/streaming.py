"""Streaming: continues prompts as text, in pieces of whole characters, with stop strings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from minigpt.config import SamplingConfig
from minigpt.edges import provided
from minigpt.errors import ConfigError
from minigpt.generation.decoding import Decoder, GeneratedToken, engine_of
from minigpt.generation.engine import Engine
from minigpt.generation.healing import Prompt, encode_prompt
from minigpt.generation.logits_processors import LogitsProcessor
from minigpt.generation.sampling import Sampler
from minigpt.generation.speculative import Drafter
from minigpt.generation.stopping import StopFilter
from minigpt.model.gpt import GPT, eval_mode
from minigpt.tokenizer.tokenizer import Tokenizer

FinishReason = Literal["end_of_text", "stop", "length"]

_LAST_TOKENS = 8  # of a prompt: enough for an abbreviation


@dataclass(frozen=True)
class Piece:
    """One generated token of a row, the text that can be shown with it, and why the row ended, if it did.

    `text` may lag `token`: a character is held back until its last byte, and text that may be the beginning of a stop
    string until this is decided. `healed` is the end of the prompt that the token spells again (see `healing.py`); it
    is not in `text`.
    """

    row: int
    text: str
    token: GeneratedToken
    finish_reason: FinishReason | None = None
    healed: str = ""


class RowText:
    """The text of one row, token by token; it begins with the `end` of the prompt, which is not shown again.

    With `one_turn` it ends before the next turn of a transcript.
    """

    def __init__(
        self, row: int, tokenizer: Tokenizer, config: SamplingConfig, prompt: Prompt, *, one_turn: bool = False
    ) -> None:
        self.row, self.tokenizer, self.config, self.end = row, tokenizer, config, prompt.end
        self.decoder = tokenizer.decoder(continues=True)
        before = tokenizer.decode(prompt.ids[-_LAST_TOKENS:]) + prompt.end
        self.filter = StopFilter(config.stop, config.until, one_turn=one_turn, before=before)
        self.n_new = 0

    def add(self, token: GeneratedToken) -> Piece:
        """The piece for this token; it has a finish reason if the row ends."""
        self.n_new += 1
        if token.id in self.tokenizer.end_ids:
            return self._end(token, "end_of_text")
        decoded = self.decoder.feed(token.id)
        healed, new = decoded[: len(self.end)], decoded[len(self.end) :]
        self.end = self.end[len(healed) :]
        text, stopped = self.filter.feed(new, may_stop=self.n_new >= self.config.min_new_tokens)
        if stopped:
            return Piece(self.row, text, token, "stop", healed)
        if self.n_new == self.config.max_new_tokens:
            ended = self._end(token, "length")
            return Piece(self.row, text + ended.text, token, ended.finish_reason, healed)
        return Piece(self.row, text, token, healed=healed)

    def _end(self, token: GeneratedToken, reason: FinishReason) -> Piece:
        # Only a row that ends by its length ends within a character, and the part of it is not shown.
        text, stopped = self.filter.feed(self.decoder.flush() if self.config.allow_invalid_utf8 else "")
        return Piece(self.row, text if stopped else text + self.filter.flush(), token, "stop" if stopped else reason)


def generate_pieces(
    model: GPT | Engine,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int] | Prompt],
    config: SamplingConfig,
    *,
    processors: Sequence[LogitsProcessor] = (),
    sampler: Sampler | None = None,
    alternatives: int | None = None,
    drafter: Drafter | None = None,
) -> Iterator[Piece]:
    """Continues every prompt, a text, token ids or both encoded, `config.samples` times in parallel, piece by piece.

    An edge may choose the continuations in another way, at the seam `search`: a function like `sample_pieces`, which
    returns None if the settings ask for nothing else. With beams or `best_of`, the pieces come after the search, the
    best continuation of each prompt first. Row r continues prompt r // samples. It ends at one of the tokenizer's
    `end_ids`, before a stop string, after the sentence, paragraph or line of `until`, or after `max_new_tokens`; its
    last piece has a finish reason. `processors` change the logits (see `LogitsProcessor`). A `sampler`, which has its
    own processors, replaces the one made from `config`.
    Raises: ConfigError for settings that do not fit the model or each other; GenerationError for NaN or infinite
    logits.
    """
    if sampler is not None and processors:
        raise ConfigError("processors must be given to the Sampler if generate_pieces gets one")
    engine = engine_of(model)
    sampler = sampler or Sampler(config, tokenizer, processors=processors)
    how = {"token_healing": config.token_healing, "special_tokens": config.special_tokens}
    encoded = [each if isinstance(each, Prompt) else encode_prompt(tokenizer, each, **how) for each in prompts]
    with eval_mode(engine.model):
        for generate in (*provided("search"), sample_pieces):
            pieces = generate(engine, tokenizer, encoded, config, sampler, alternatives, drafter)
            if pieces is not None:
                yield from pieces
                break


def sample_pieces(
    engine: Engine, tokenizer: Tokenizer, prompts: list[Prompt], config: SamplingConfig, sampler: Sampler,
    alternatives: int | None, drafter: Drafter | None,
) -> Iterator[Piece]:  # fmt: skip
    """Draws `texts_per_prompt` continuations of each prompt, all in parallel."""
    repeated = [prompt for prompt in prompts for _ in range(config.texts_per_prompt)]
    decoder = Decoder(
        engine,
        repeated,
        sampler,
        samples=list(range(config.texts_per_prompt)) * len(prompts),
        vocab_size=tokenizer.vocab_size,
        keep_first=config.keep_first,
        alternatives=alternatives,
    )
    decoder.drafter = drafter
    rows = [RowText(row, tokenizer, config, prompt) for row, prompt in enumerate(repeated)]
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


def generate_text(
    model: GPT | Engine,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    config: SamplingConfig,
    *,
    processors: Sequence[LogitsProcessor] = (),
) -> Iterator[str]:
    """Continues one prompt, a text or token ids, as text, in pieces of whole characters.

    Raises: ConfigError for several samples, which need `generate_pieces`; GenerationError for NaN or infinite logits.
    """
    if config.samples != 1:
        raise ConfigError(f"samples ({config.samples}) must be 1 here; use generate_pieces for several")
    for piece in generate_pieces(model, tokenizer, [prompt], config, processors=processors):
        if piece.text:
            yield piece.text
