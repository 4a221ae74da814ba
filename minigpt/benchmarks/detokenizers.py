"""Undoes the tokenization of published texts, as the GPT-2 paper does before measuring them.

OpenAI did not publish its rules. These restore what the paper names: contractions, numbers, punctuation, brackets and
quotes. Unknown words and PTB's N stay, because any replacement would change the text.
Source: Radford et al. 2019, section 3.1.
"""

import re
from collections.abc import Callable

Detokenizer = Callable[[str], str]
_Rules = tuple[tuple[str, str], ...]

_ENDINGS = r" ('(?:s|t|d|m|re|ve|ll)|n't)\b"
_LINES: _Rules = ((r" +\n", "\n"), (r"\n +", "\n"), (r"\A +", ""))
_WIKITEXT: _Rules = (
    (r" @([-,.])@ ", r"\1"),  # 1 @,@ 000 and two @-@ part
    (r'" ([^"\n]*?) "', r'"\1"'),
    (r" ([.,:;!?%)\]}])", r"\1"),
    (r"([(\[{£€$]) ", r"\1"),
    (_ENDINGS, r"\1"),
    (r"s ' ", "s' "),
    (r" ' ([^'\n]*?) '(?=\W)", r" '\1'"),
    (r"= (?==)", "="),  # headings: = = Career = =
    *_LINES,
)
_PTB: _Rules = (
    (_ENDINGS, r"\1"),
    (r"s ' ", "s' "),
    (r"([$#]) (?=N\b)", r"\1"),
    *_LINES,
)
_CBT: _Rules = (
    (r"`` ?", '"'),
    (r" ?''", '"'),
    (r"-L[RS]B- ?", "("),
    (r" ?-R[RS]B-", ")"),
    (r"(?<= )` ", "'"),
    (r" ([.,:;!?])", r"\1"),
    (_ENDINGS, r"\1"),
    (r"s ' ", "s' "),
    *_LINES,
)


def _detokenizer(rules: _Rules) -> Detokenizer:
    compiled = [(re.compile(pattern), replacement) for pattern, replacement in rules]

    def detokenize(text: str) -> str:
        for pattern, replacement in compiled:
            text = pattern.sub(replacement, text)
        return text

    return detokenize


detokenize_wikitext = _detokenizer(_WIKITEXT)
detokenize_ptb = _detokenizer(_PTB)
detokenize_cbt = _detokenizer(_CBT)
