"""Estimates which languages a text is in, with py3langid, and how its held-out part differs from its training part."""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from minigpt.baselines.even_sample import even_blocks, even_sample
from minigpt.baselines.ngrams import BOUNDARY

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

_BLOCK = 400  # bytes classified together: enough for over 95 % correct answers, and little enough to see a mixture
_MIN_DOCUMENT = 50  # bytes of a shorter block that ends with a document, which is 99 % correct
_MOST_BYTES = 400_000  # classified, about 0.4 s
_MIN_BYTES = 100  # of a text that is classified
_MIN_SHARE = 0.02  # below it, a language is a quotation or chance
_MIN_CONFIDENCE = 0.5  # the probability below which a block, such as one of program code, is in no known language
_MIN_BLOCKS = 5  # of each part that is compared
_MIN_LANGUAGE = 0.25  # the least difference of the fractions in a language that is reported
_MIN_CHARACTERS = 0.1  # the same for a kind of characters: prose and code differ by about that
_MOST_COUNTED = 2**20  # bytes whose characters are counted
_KINDS = {"N": "digits", "P": "punctuation and symbols", "S": "punctuation and symbols"}  # by Unicode category
_NO_LANGUAGE = ("und", "zxx")  # ISO 639's codes for undetermined, and for no linguistic content


def language_shares(text: bytes) -> dict[str, float]:
    """The estimated fraction of a UTF-8 text in each language, by ISO 639 code, the largest first.

    Documents end with BOUNDARY. A long text is sampled in evenly spaced blocks. Blocks without letters do not count.
    The fractions add up to less than 1 if blocks were not identified, or languages have less than 2 %. Without
    py3langid, no language is known.
    """
    identifier = _identifier()
    if len(text) < _MIN_BYTES or identifier is None:
        return {}
    counts: Counter[str] = Counter()
    for start, end in even_blocks(len(text), _MOST_BYTES, _BLOCK):
        for block in _blocks(text[start:end]):
            if any(map(str.isalpha, block)):
                counts[identifier.classify(block)[0]] += len(block)
    total = counts.total()
    identified = [(name, count) for name, count in counts.most_common() if name not in _NO_LANGUAGE]
    return {name: count / total for name, count in identified if count >= _MIN_SHARE * total}


def differences(train: bytes, validation: bytes) -> Iterator[str]:
    """What differs between the two parts, as in "100% in de (training text: 50%)"; nothing if a part is very short.

    A difference that may be chance is not reported.
    """
    n_blocks = min(len(train), len(validation)) / _BLOCK
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
    found = Counter(even_sample(text, _MOST_COUNTED).decode(errors="ignore"))
    for character, count in found.items():
        counts[_KINDS.get(unicodedata.category(character)[0], "")] += count
    return {kind: counts[kind] / found.total() for kind in sorted(set(_KINDS.values()))}


def _blocks(text: bytes) -> Iterator[str]:
    """The text in blocks, of one document each unless documents are very short."""
    start = 0
    while start < len(text):
        end = text.find(BOUNDARY, start + _MIN_DOCUMENT, start + _BLOCK) + 1 or start + _BLOCK
        yield text[start:end].decode(errors="ignore")
        start = end


@cache
def _identifier() -> "LanguageIdentifier | None":
    """Its model takes half a second to load."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        return None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=_MIN_CONFIDENCE)
