"""Estimates which languages a text is in, with py3langid; where that is not sure, none."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from minigpt.evaluation.even_sample import even_blocks
from minigpt.evaluation.ngrams import BOUNDARY

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

BLOCK = 400  # bytes classified together: enough for over 95 % correct answers, and little enough to see a mixture
_MIN_DOCUMENT = 50  # bytes of a shorter block that ends with a document, which is 99 % correct
_MOST_BYTES = 400_000  # classified, about 0.4 s
_MIN_BYTES = 100  # of a text that is classified
_MIN_SHARE = 0.02  # below it, a language is a quotation or chance
_MIN_CONFIDENCE = 0.5  # the probability below which a block, such as one of program code, is in no known language
_NO_LANGUAGE = ("und", "zxx")  # ISO 639's codes for undetermined, and for no linguistic content


def language_shares(text: bytes) -> dict[str, float]:
    """The estimated fraction of a UTF-8 text in each language, by ISO 639 code, the largest first.

    Documents end with BOUNDARY. A long text is sampled in evenly spaced blocks. Blocks without letters do not count.
    The fractions add up to less than 1 if blocks were not identified, or languages have less than 2 %.
    """
    if len(text) < _MIN_BYTES:
        return {}
    identifier = _identifier()
    counts: Counter[str] = Counter()
    for start, end in even_blocks(len(text), _MOST_BYTES, BLOCK):
        for block in _blocks(text[start:end]):
            if any(map(str.isalpha, block)):
                counts[identifier.classify(block)[0]] += len(block)
    total = counts.total()
    identified = [(name, count) for name, count in counts.most_common() if name not in _NO_LANGUAGE]
    return {name: count / total for name, count in identified if count >= _MIN_SHARE * total}


def _blocks(text: bytes) -> Iterator[str]:
    """The text in blocks, of one document each unless documents are very short."""
    start = 0
    while start < len(text):
        end = text.find(BOUNDARY, start + _MIN_DOCUMENT, start + BLOCK) + 1 or start + BLOCK
        yield text[start:end].decode(errors="ignore")
        start = end


@cache
def _identifier() -> "LanguageIdentifier":
    """Its model takes half a second to load."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=_MIN_CONFIDENCE)
