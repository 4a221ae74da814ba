"""The byte n-gram model: by hand, against its equations with exact fractions, and as a distribution."""

from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.baselines import ngrams
from minigpt.baselines.ngrams import ByteNgramModel, word_frequency_bits

SHORT = st.text("abc", min_size=1, max_size=60).map(str.encode)


def plain_discounts(counts: list[int]) -> dict[int, Fraction]:
    n = Counter(counts)
    if not (n[1] and n[2]):
        return dict.fromkeys((1, 2, 3), Fraction(1, 2))
    ney = Fraction(n[1], n[1] + 2 * n[2])
    discounts = {}
    for k in (1, 2, 3):
        modified = k - (k + 1) * ney * Fraction(n[k + 1], n[k]) if n[k] and n[k + 1] else ney
        discounts[k] = modified if modified > 0 else ney
    return discounts


def plain_probability(text: bytes, order: int, context: bytes, byte: int) -> Fraction:
    """Chen & Goodman's interpolated modified Kneser-Ney with dictionaries and fractions, one byte at a time."""
    padded = b"\xff" * (order - 1) + text
    counts = [Counter(padded[i : i + order] for i in range(len(padded) - order + 1))]
    for _ in range(order - 1):
        before: defaultdict[bytes, set[int]] = defaultdict(set)
        for seen in counts[0] if len(counts) == 1 else counts[-1]:
            before[seen[1:]].add(seen[0])
        counts.append(Counter({seen: len(first) for seen, first in before.items()}))
    probability = Fraction(1, 256)
    for length, table in enumerate(reversed(counts)):
        ending = context[len(context) - length :]
        after = {seen: count for seen, count in table.items() if seen[:-1] == ending}
        if not after:
            continue
        discounts, total = plain_discounts(list(table.values())), sum(after.values())
        count = after.get(ending + bytes([byte]), 0)
        share = (count - discounts[min(count, 3)]) / total if count else Fraction(0)
        freed = sum((discounts[min(c, 3)] for c in after.values()), Fraction(0)) / total
        probability = share + freed * probability
    return probability


@settings(deadline=None, max_examples=40)
@given(train=SHORT, text=SHORT, order=st.integers(1, 5))
def test_every_probability_equals_that_of_the_equations(train: bytes, text: bytes, order: int) -> None:
    text = text[:8]
    padded = b"\xff" * (order - 1) + text
    expected = [
        float(plain_probability(train, order, padded[i : i + order - 1], byte)) for i, byte in enumerate(text)
    ]  # fmt: skip
    assert ByteNgramModel.fit(train, order).probabilities(text) == pytest.approx(expected, rel=1e-9)


@settings(deadline=None, max_examples=25)
@given(train=st.binary(min_size=1, max_size=300), context=st.binary(max_size=8), order=st.integers(1, 7))
def test_the_probabilities_of_the_next_byte_sum_to_one(train: bytes, context: bytes, order: int) -> None:
    model = ByteNgramModel.fit(train, order)
    total = sum(model.probabilities(context + bytes([byte]))[-1] for byte in range(256))
    assert total == pytest.approx(1, rel=1e-9)


def test_bits_are_the_sum_of_the_logarithms() -> None:
    model = ByteNgramModel.fit(b"the cat sat on the mat and the hat " * 3)
    text = b"a cat that sat"
    assert model.bits(text) == pytest.approx(-np.log2(model.probabilities(text)).sum())


def test_a_text_counted_in_blocks_has_the_same_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    text = bytes(np.random.default_rng(0).choice(np.frombuffer(b"abcd", np.uint8), 500))
    whole = ByteNgramModel.fit(text, 4).probabilities(b"abcdabcdbbaacd")
    monkeypatch.setattr(ngrams, "_BLOCK", 37)
    assert ByteNgramModel.fit(text, 4).probabilities(b"abcdabcdbbaacd") == pytest.approx(whole, rel=1e-12)


def test_after_an_empty_text_every_byte_is_equally_likely() -> None:
    for order in (1, 5):
        assert ByteNgramModel.fit(b"", order).bits(b"abc") == 3 * 8


def test_known_words_cost_their_frequency_and_new_words_their_bytes() -> None:
    # a and the space occur twice, b once: five words, three different, so a known one costs log2(8 / count) bits. The
    # only word that occurs once is b; its byte and the end mark add to the 256 counts of the bytes.
    unseen = np.log2(8 / 3) + np.log2(258 / 1) + np.log2(258 / 2)
    assert word_frequency_bits(b"a a b", b"a c") == pytest.approx(2 + 2 + unseen)
