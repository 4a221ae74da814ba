"""Compares the held-out part of a text with its training part, in language and in kinds of characters."""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator

from minigpt.corpus_report.languages import BLOCK, language_shares
from minigpt.evaluation.even_sample import even_sample

_MIN_BLOCKS = 5  # of each part
_MIN_LANGUAGE = 0.25  # the least difference of the fractions in a language that is reported
_MIN_CHARACTERS = 0.1  # the same for a kind of characters: prose and code differ by about that
_MOST_BYTES = 2**20  # whose characters are counted
_KINDS = {"N": "digits", "P": "punctuation and symbols", "S": "punctuation and symbols"}  # by Unicode category


def differences(train: bytes, validation: bytes) -> Iterator[str]:
    """What differs between the two parts, as in "100% in de (training text: 50%)"; nothing if a part is very short.

    A difference that may be chance is not reported.
    """
    n_blocks = min(len(train), len(validation)) / BLOCK
    if n_blocks < _MIN_BLOCKS:
        return
    of_train, of_validation = language_shares(train), language_shares(validation)
    for name in of_validation | of_train:
        own, other = of_validation.get(name, 0.0), of_train.get(name, 0.0)
        if abs(own - other) >= max(_MIN_LANGUAGE, 3 * math.sqrt(other * (1 - other) / n_blocks)):
            yield f"{own:.0%} in {name} (training text: {other:.0%})"
    of_train, of_validation = _character_shares(train), _character_shares(validation)
    for name, own in of_validation.items():
        if abs(own - of_train[name]) >= _MIN_CHARACTERS:
            yield f"{own:.0%} {name} (training text: {of_train[name]:.0%})"


def _character_shares(text: bytes) -> dict[str, float]:
    """The fraction of the characters that are digits, and that are punctuation and symbols."""
    counts: Counter[str] = Counter()
    found = Counter(even_sample(text, _MOST_BYTES).decode(errors="ignore"))
    for character, count in found.items():
        counts[_KINDS.get(unicodedata.category(character)[0], "")] += count
    return {kind: counts[kind] / found.total() for kind in sorted(set(_KINDS.values()))}
