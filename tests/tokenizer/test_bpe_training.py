"""BPE training: the merges are those that Hugging Face's trainer learns, and long pre-tokens do not slow it down."""

import pytest
import tokenizers

from minigpt.errors import TokenizerError
from minigpt.tokenizer.bpe_training import _shorten_pretokens, train_merges
from minigpt.tokenizer.tokenizer import Tokenizer

ENGLISH = "It was the best of times, it was the worst of times; it was the age of wisdom, it's said.\n\n" * 20
MIXED = ENGLISH + "naïve café, Ünïcödé — 中文字符 日本語 русский язык 😀👍🏽 1234 don't we'll I'VE  \t x = {}\r\n" * 5


def test_merges_equal_those_that_hugging_face_learns() -> None:
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator([MIXED], vocab_size=349, min_frequency=2, show_progress=False)
    assert Tokenizer.train([MIXED], "bpe:350").encode(MIXED) == trained.encode(MIXED).ids


def test_the_vocabulary_is_smaller_than_requested_if_the_text_has_too_few_repeated_pairs() -> None:
    tokenizer = Tokenizer.train(iter(["abab", "cdcd"]), "bpe:1000")
    assert tokenizer.merges == [(b"a", b"b"), (b"c", b"d")]
    assert tokenizer.name == "bpe:259"
    assert Tokenizer.train([], "bpe:257").encode("A") == [32]  # GPT-2's order of bytes


@pytest.mark.parametrize("spec", ["bpe:300", "chars"])
def test_one_text_is_trained_on_as_a_list_of_one(spec: str) -> None:
    alone, listed = Tokenizer.train(MIXED, spec), Tokenizer.train([MIXED], spec)
    assert alone.fingerprint == listed.fingerprint
    assert alone.vocab_size > 257


@pytest.mark.parametrize(
    "spec", ["bpe:256", "bpe:0", "bpe:", "bpe:-5", "bpe", "words", "", "bpe:4k", "gpt2", "bpe:500001", "bpe:999999999"]
)
def test_a_specification_that_cannot_be_trained_is_refused(spec: str) -> None:
    with pytest.raises(TokenizerError, match=r"^tokenizer \('"):
        Tokenizer.train(["text"], spec)


def test_long_pretokens_are_split_for_training_and_short_ones_are_not() -> None:
    short = "a few words, " + 256 * "x" + "\n\nand no more "
    assert _shorten_pretokens(short) == short
    pieces = _shorten_pretokens(257 * "é" + " " + 1000 * "ab")
    assert max(map(len, pieces.split())) == 256
    assert pieces.replace("\n", "") == 257 * "é" + " " + 1000 * "ab"
    assert train_merges([1000 * "ab"], 1) == [(b"a", b"b")]


def test_long_white_space_is_shortened_for_training() -> None:
    short = "a" + 256 * " " + "b" + 128 * "\r\n" + "c"
    assert _shorten_pretokens(short) == short
    assert _shorten_pretokens("a" + 100_000 * " \n" + "b\t c") == "a" + 128 * " \n" + "b\t c"
