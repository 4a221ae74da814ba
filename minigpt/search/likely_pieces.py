"""Likely texts in pieces: those of a beam search, or the best of several drawn texts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from minigpt.config import SamplingConfig
from minigpt.generation.decoding import GeneratedToken
from minigpt.generation.engine import Engine
from minigpt.generation.healing import Prompt
from minigpt.generation.sampling import Sampler
from minigpt.generation.speculative import Drafter
from minigpt.generation.streaming import Piece, RowText, sample_pieces
from minigpt.search.beam_search import beam_search
from minigpt.search.settings import SearchSettings
from minigpt.tokenizer.tokenizer import Tokenizer


def likely_pieces(
    engine: Engine, tokenizer: Tokenizer, prompts: list[Prompt], config: SamplingConfig, sampler: Sampler,
    alternatives: int | None, drafter: Drafter | None,
) -> Iterator[Piece] | None:  # fmt: skip
    """What `--beams` or `--best-of` find, after the search; None without them."""
    settings = SearchSettings.of(config)
    if settings.beams > 1:
        return _search(engine, tokenizer, prompts, config, sampler)
    if settings.best_of > 1:
        drawn = sample_pieces(engine, tokenizer, prompts, config, sampler, alternatives or 0, drafter)
        return _best(drawn, tokenizer, config, len(prompts))
    return None


def _search(
    engine: Engine, tokenizer: Tokenizer, prompts: list[Prompt], config: SamplingConfig, sampler: Sampler
) -> Iterator[Piece]:
    """The best continuations of each prompt, after its search is complete."""
    for number, prompt in enumerate(prompts):
        end_ids, vocab_size, beginning = tokenizer.end_ids, tokenizer.vocab_size, prompt.end.encode()
        found = beam_search(engine, prompt.ids, config, sampler, end_ids, vocab_size, beginning)
        for index, (_, ids) in enumerate(found[: config.samples]):
            row = RowText(number * config.samples + index, tokenizer, config, prompt)
            for id in ids:
                piece = row.add(GeneratedToken(id))
                yield piece
                if piece.finish_reason is not None:
                    break


def _best(pieces: Iterator[Piece], tokenizer: Tokenizer, config: SamplingConfig, n_prompts: int) -> Iterator[Piece]:
    """The `samples` most likely of `best_of` continuations of each prompt, after all have ended."""
    best_of = SearchSettings.of(config).best_of
    drawn: list[list[Piece]] = [[] for _ in range(n_prompts * best_of)]
    for piece in pieces:
        drawn[piece.row].append(piece)
    for number in range(n_prompts):
        own = drawn[number * best_of : (number + 1) * best_of]
        own.sort(key=lambda row: bits_per_byte([piece.token for piece in row], tokenizer))
        for index, row in enumerate(own[: config.samples]):
            for piece in row:
                yield replace(piece, row=number * config.samples + index)


def bits_per_byte(tokens: Sequence[GeneratedToken], tokenizer: Tokenizer) -> float:
    """The surprisal of generated tokens in bits per byte of their text; infinite for a text without a byte.

    Bytes rather than tokens, because a mean over tokens prefers long words, whose last tokens are nearly certain.
    Raises: ValueError for tokens that were generated without log-probabilities.
    """
    n_bytes, nats = 0, 0.0
    for token in tokens:
        if token.logprob is None:
            raise ValueError(f"token {token.id} has no log-probability")
        nats -= token.logprob
        n_bytes += int(tokenizer.token_lengths[token.id])
    return nats / math.log(2) / n_bytes if n_bytes else math.inf
