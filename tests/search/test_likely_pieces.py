"""Texts in pieces that a search has found: the best beams, and the best of several drawn texts."""

import math
from collections.abc import Sequence

import pytest
from builders import new_model

from minigpt.config import SamplingConfig
from minigpt.generation.decoding import GeneratedToken
from minigpt.generation.streaming import Piece, generate_pieces
from minigpt.model.gpt import GPT
from minigpt.search.likely_pieces import bits_per_byte
from minigpt.tokenizer.tokenizer import Tokenizer

BYTES = Tokenizer.named("bytes")


def small_model(**fields: int) -> GPT:
    """A random float64 model whose weights are large enough that the context matters."""
    return new_model(scale=8, **fields).double()


def ids_of(pieces: Sequence[Piece], row: int = 0) -> list[int]:
    return [piece.token.id for piece in pieces if piece.row == row]


def test_the_best_beams_are_pieces_with_the_rows_of_their_prompts() -> None:
    config = SamplingConfig(max_new_tokens=5, beams=4, samples=2, stop=("\x00",))
    pieces = list(generate_pieces(small_model(), BYTES, ["ab", "c"], config))
    assert {piece.row for piece in pieces} == {0, 1, 2, 3}
    for row in range(4):
        own = [piece.finish_reason for piece in pieces if piece.row == row]
        assert own[-1] in ("length", "end_of_text", "stop")
        assert set(own[:-1]) <= {None}
    (alone,) = {tuple(ids_of(list(generate_pieces(small_model(), BYTES, ["c"], config)), 0))}
    assert ids_of(pieces, 2) == list(alone)


def test_the_best_of_several_texts_are_those_with_the_highest_log_probability_per_byte() -> None:
    config = SamplingConfig(max_new_tokens=6, samples=7, seed=5, temperature=1.5)
    drawn = list(generate_pieces(small_model(), BYTES, ["ab", "c"], config, alternatives=0))
    rows = [[piece.token for piece in drawn if piece.row == row] for row in range(14)]
    expected = [
        [token.id for token in tokens]
        for own in (rows[:7], rows[7:])
        for tokens in sorted(own, key=lambda tokens: -sum(token.logprob or 0.0 for token in tokens))[:2]
    ]
    best = list(generate_pieces(small_model(), BYTES, ["ab", "c"], config.replace(best_of=7, samples=2)))
    assert [ids_of(best, row) for row in range(4)] == expected
    assert expected[0] != [token.id for token in rows[0]]


def test_likelihood_is_compared_per_byte_of_text_and_a_text_without_a_byte_comes_last() -> None:
    gpt2 = Tokenizer.named("gpt2")
    word = [GeneratedToken(id, -2.0) for id in gpt2.encode(" understanding")]  # 14 bytes
    letters = [GeneratedToken(id, -1.0) for id in gpt2.encode("qz")]
    assert (len(word), len(letters)) == (1, 2)
    assert bits_per_byte(word, gpt2) == pytest.approx(2 / math.log(2) / 14)
    assert bits_per_byte(letters, gpt2) == pytest.approx(1 / math.log(2))
    ended = [GeneratedToken(gpt2.end_of_text, -0.01)]
    assert bits_per_byte(ended, gpt2) == math.inf
    assert bits_per_byte(word + ended, gpt2) == pytest.approx(2.01 / math.log(2) / 14)
