"""The tokens that merges can produce, compared with those that Hugging Face's tokenizers produces."""

import random

import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from tokenizers import models

from minigpt.errors import TokenizerError
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import GPT2_BYTES, Vocabulary, bytes_to_unicode, mergeable_ranks

BYTES = [bytes_to_unicode(bytes([byte])) for byte in GPT2_BYTES]


@st.composite
def merge_tables(draw):
    """Merges of the letters a, b and c and of earlier merges' results, whether any text can use them or not.

    Some produce the same token as another merge, and some are repeated.
    """
    tokens, merges = ["a", "b", "c"], []
    for _ in range(draw(st.integers(0, 14))):
        left, right = draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens))
        if len(left + right) <= 9:
            merges.append((left, right))
            tokens += [left + right] * (left + right not in tokens)
    try:
        mergeable_ranks(encoded(merges))
    except TokenizerError:  # a repeated merge counts at its last place, which may be too late
        reject()
    return merges


def encoded(merges):
    return [(left.encode(), right.encode()) for left, right in merges]


def theirs(merges):
    """Hugging Face's byte-pair encoding with these merges, its ids in the order of `in_order`."""
    tokens = [*BYTES, *dict.fromkeys(left + right for left, right in merges)]
    vocab = {token: id for id, token in enumerate(tokens)}
    return models.BPE(vocab, merges), vocab


@settings(deadline=None, max_examples=150)
@given(merge_tables())
@example([("a", "b"), ("b", "c"), ("a", "bc")])
@example([("a", "a"), ("aa", "a"), ("a", "aa"), ("aa", "aa")])
@example([("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")])
def test_the_tokens_that_merges_produce_are_those_that_hugging_face_encodes_as_one(merges):
    bpe, _ = theirs(merges)
    products = {left + right for left, right in merges}
    assert {token.decode() for token in mergeable_ranks(encoded(merges))} == {
        token for token in products if len(bpe.tokenize(token)) == 1
    }


@settings(deadline=None, max_examples=80)
@given(merge_tables(), st.lists(st.text("abc", max_size=40), min_size=1, max_size=8), st.randoms(use_true_random=False))
@example([("a", "b"), ("b", "c"), ("a", "bc")], ["abc"], random.Random(0))
def test_ids_equal_hugging_faces_for_any_merges_and_any_order_of_ids(merges, texts, chance):
    bpe, vocab = theirs(merges)
    ids = list(range(len(vocab) + 5))
    chance.shuffle(ids)
    tokenizer = Tokenizer.from_vocabulary(
        {token: ids[id] for token, id in vocab.items()}, merges, special={"<end>": ids[-1]}, end_of_text="<end>"
    )
    for text in texts:
        assert tokenizer.encode(text) == [ids[token.id] for token in bpe.tokenize(text)]
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_merge_that_is_never_applied_changes_the_fingerprint():
    merges = [(b"a", b"b"), (b"b", b"c"), (b"a", b"bc")]
    sound = [(b"a", b"b"), (b"b", b"c"), (b"ab", b"c")]
    one, other = (Tokenizer(Vocabulary.in_order(GPT2_BYTES, table)) for table in (merges, sound))
    assert len(one.encode("abc")) == 2
    assert len(other.encode("abc")) == 1
    assert one.fingerprint != other.fingerprint


def test_merges_out_of_order_are_refused():
    with pytest.raises(TokenizerError, match="its merge of 'ab' and 'c' must come after the merges that produce them"):
        mergeable_ranks([(b"ab", b"c"), (b"a", b"b")])
    assert mergeable_ranks([(b"ab", b"c"), (b"a", b"c")]) == {b"ac": 1}  # nothing produces "ab"


def parts(**changes):
    tokens = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
    return {"tokens": tokens, "merges": [(b"a", b"b")], "special": {"<end>": 257}, "end_of_text": "<end>"} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"end_of_text": "<stop>"}, "its end-of-text token ('<stop>') must be one of its special tokens"),
        ({"special": {"<end>": 257, "!": 258}}, "its special token '!' must have at least 2 characters"),
        ({"special": {"<end>": 256}}, "its id 256 must belong to one token, not to b'ab' and b'<end>'"),
        ({"special": {"<end>": -1}}, "the id of b'<end>' (-1) must be an integer from 0 to"),
        ({"special": {"<end>": True}}, "the id of b'<end>' (True) must be an integer"),
        ({"special": {"<end>": 10**12}}, "the id of b'<end>' (1000000000000) must be an integer"),
        ({"tokens": {bytes([b]): b for b in range(256) if b != 7}}, "must have a token for each of the 256 bytes"),
        ({"tokens": {bytes([b]): b for b in range(256)}}, "its merges produce 'ab', which must be an ordinary token"),
        ({"added": {"<a>": 258, "a><": 259}}, "its added tokens '<a>' and 'a><' must not overlap"),
        ({"added": {"<<": 258, "<": 60}}, "its added tokens '<' and '<<' must not overlap"),
        ({"added": {">>": 258, ">>>>": 259}}, "its added tokens '>>' and '>>>>' must not overlap"),
        (
            {"added": {"<" * 257: 258}},
            "its added token '<<<<<<<<<<<<<<<<<<<<'… has 257 characters; the maximum is 256",
        ),
        ({"added": {"<|endof": 258}}, "its added tokens '<|endof' and '<|endoftext|>' must not overlap"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(TokenizerError) as caught:
        Tokenizer(Vocabulary(**parts(**changes)))
    assert message in str(caught.value)


def test_ids_may_have_gaps_which_decode_to_nothing():
    tokenizer = Tokenizer(Vocabulary(**parts(special={"<end>": 300})))
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (301, 300)
    assert tokenizer.unused_ids == tuple(range(257, 300))
    assert tokenizer.decode([97, 280, 256]) == "aab"
    assert tokenizer.token_lengths[[97, 280, 256, 300]].tolist() == [1, 0, 2, 0]
    assert tokenizer.token_strings[279:281] == ["", ""]


def test_token_strings_and_merge_strings_are_those_that_files_write():
    tokenizer = Tokenizer(Vocabulary(**parts(added={"<mark me>": 258})))
    assert tokenizer.token_strings[32] == "Ġ"
    assert tokenizer.token_strings[256:] == ["ab", "<end>", "<mark me>"]
    assert tokenizer.merge_strings == ["a b"]
    assert Tokenizer.named("bytes").token_strings[10] == "Ċ"
