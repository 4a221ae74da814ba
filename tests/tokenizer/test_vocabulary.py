"""Which words merges make is proven, and compared with what Hugging Face's own merging makes of them."""

import random

import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from tokenizers import models

from minigpt.errors import TokenizerError
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import GPT2_BYTES, Vocabulary, words_made, written

BYTES = [written(bytes([byte])) for byte in GPT2_BYTES]


@st.composite
def merge_tables(draw):
    """Merges of words of "abc", each of words that stand before it, whether a text ever has them side by side or not.

    Some make a word that another makes too, and some stand there twice.
    """
    words, merges = ["a", "b", "c"], []
    for _ in range(draw(st.integers(0, 14))):
        left, right = draw(st.sampled_from(words)), draw(st.sampled_from(words))
        if len(left + right) <= 9:
            merges.append((left, right))
            words += [left + right] * (left + right not in words)
    try:
        words_made(encoded(merges))
    except TokenizerError:  # one that stands there twice counts where it stands last, which may be too late
        reject()
    return merges


def encoded(merges):
    return [(left.encode(), right.encode()) for left, right in merges]


def theirs(merges):
    """Hugging Face's byte-pair encoding with these merges, its ids in the order of `in_order`."""
    words = [*BYTES, *dict.fromkeys(left + right for left, right in merges)]
    vocab = {word: id for id, word in enumerate(words)}
    return models.BPE(vocab, merges), vocab


@settings(deadline=None, max_examples=150)
@given(merge_tables())
@example([("a", "b"), ("b", "c"), ("a", "bc")])
@example([("a", "a"), ("aa", "a"), ("a", "aa"), ("aa", "aa")])
@example([("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")])
def test_the_words_made_are_those_that_hugging_face_makes_of_their_own_letters(merges):
    bpe, _ = theirs(merges)
    products = {left + right for left, right in merges}
    assert {word.decode() for word in words_made(encoded(merges))} == {w for w in products if len(bpe.tokenize(w)) == 1}


@settings(deadline=None, max_examples=80)
@given(merge_tables(), st.lists(st.text("abc", max_size=40), min_size=1, max_size=8), st.randoms(use_true_random=False))
@example([("a", "b"), ("b", "c"), ("a", "bc")], ["abc"], random.Random(0))
def test_ids_are_hugging_faces_whatever_the_merges_and_whatever_the_order_of_the_ids(merges, texts, chance):
    bpe, vocab = theirs(merges)
    ids = list(range(len(vocab) + 5))
    chance.shuffle(ids)
    tokenizer = Tokenizer.from_vocabulary(
        {word: ids[id] for word, id in vocab.items()}, merges, special={"<end>": ids[-1]}, end_of_text="<end>"
    )
    for text in texts:
        assert tokenizer.encode(text) == [ids[token.id] for token in bpe.tokenize(text)]
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_merge_that_never_comes_about_makes_a_fingerprint_of_its_own():
    merges = [(b"a", b"b"), (b"b", b"c"), (b"a", b"bc")]
    sound = [(b"a", b"b"), (b"b", b"c"), (b"ab", b"c")]
    one, other = (Tokenizer(Vocabulary.in_order(GPT2_BYTES, table)) for table in (merges, sound))
    assert len(one.encode("abc")) == 2
    assert len(other.encode("abc")) == 1
    assert one.fingerprint != other.fingerprint


def test_merges_out_of_order_are_refused():
    with pytest.raises(TokenizerError, match="its merge of 'ab' and 'c' must come after the merges that make these"):
        words_made([(b"ab", b"c"), (b"a", b"b")])
    assert words_made([(b"ab", b"c"), (b"a", b"c")]) == {b"ac": 1}  # "ab" never comes about


def parts(**changes):
    words = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
    return {"words": words, "merges": [(b"a", b"b")], "special": {"<end>": 257}, "end_of_text": "<end>"} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"end_of_text": "<stop>"}, "its end of text ('<stop>') must be one of its special tokens"),
        ({"special": {"<end>": 257, "!": 258}}, "its special token '!' must be no character of ordinary text"),
        ({"special": {"<end>": 256}}, "its id 256 must be of one word, and is of b'ab' and b'<end>'"),
        ({"special": {"<end>": -1}}, "the id of b'<end>' (-1) must be a whole number from 0 to"),
        ({"special": {"<end>": True}}, "the id of b'<end>' (True) must be a whole number"),
        ({"special": {"<end>": 10**12}}, "the id of b'<end>' (1000000000000) must be a whole number"),
        ({"words": {bytes([b]): b for b in range(256) if b != 7}}, "must have a word for each of the 256 bytes"),
        ({"words": {bytes([b]): b for b in range(256)}}, "its merges make 'ab', which must be an ordinary word"),
        ({"added": {"<a>": 258, "a><": 259}}, "its added tokens '<a>' and 'a><' must not overlap"),
        ({"added": {"<<": 258, "<": 60}}, "its added tokens '<<' and '<' must not overlap"),
        ({"added": {">>": 258, ">>>>": 259}}, "its added tokens '>>' and '>>>>' must not overlap"),
        (
            {"added": {"<" * 257: 258}},
            "its added token '<<<<<<<<<<<<<<<<<<<<'… of 257 characters must",
        ),
        ({"added": {"<|endof": 258}}, "its added tokens '<|endof' and '<|endoftext|>' must not overlap"),
    ],
)
def test_parts_that_contradict_one_another_are_refused(changes, message):
    with pytest.raises(TokenizerError) as caught:
        Tokenizer(Vocabulary(**parts(**changes)))
    assert message in str(caught.value)


def test_ids_with_gaps_are_kept_and_stand_for_nothing():
    tokenizer = Tokenizer(Vocabulary(**parts(special={"<end>": 300})))
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (301, 300)
    assert tokenizer.unused == tuple(range(257, 300))
    assert tokenizer.decode([97, 280, 256]) == "aab"
    assert tokenizer.token_lengths[[97, 280, 256, 300]].tolist() == [1, 0, 2, 0]
    assert tokenizer.written_words[279:281] == ["", ""]


def test_what_files_write_can_be_had_by_id():
    tokenizer = Tokenizer(Vocabulary(**parts(added={"<mark me>": 258})))
    assert tokenizer.written_words[32] == "Ġ"
    assert tokenizer.written_words[256:] == ["ab", "<end>", "<mark me>"]
    assert tokenizer.written_merges == ["a b"]
    assert Tokenizer.named("bytes").written_words[10] == "Ċ"
