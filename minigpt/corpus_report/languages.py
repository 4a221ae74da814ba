"""Estimates which languages a text is in, with py3langid."""

from collections import Counter

from minigpt.evaluation.even_sample import even_blocks

_BLOCK = 400  # bytes classified together: enough for over 95 % correct answers, and little enough to see a mixture
_MOST_BYTES = 400_000  # classified, about 0.4 s
_MIN_BYTES = 100  # of a text that is classified
_MIN_SHARE = 0.02  # below it, a language is a quotation or chance


def language_shares(text: bytes) -> dict[str, float]:
    """The estimated fraction of a UTF-8 text in each language, by ISO 639 code, the largest first.

    A long text is sampled in evenly spaced blocks. Languages below 2 % and blocks without letters do not count.
    """
    if len(text) < _MIN_BYTES:
        return {}
    import py3langid  # its model takes half a second to load

    counts: Counter[str] = Counter()
    for start, end in even_blocks(len(text), _MOST_BYTES, _BLOCK):
        for first in range(start, end, _BLOCK):
            block = text[first : min(first + _BLOCK, end)].decode(errors="ignore")
            if any(map(str.isalpha, block)):
                counts[py3langid.classify(block)[0]] += len(block)
    total = counts.total()
    return {name: count / total for name, count in counts.most_common() if count >= _MIN_SHARE * total}
