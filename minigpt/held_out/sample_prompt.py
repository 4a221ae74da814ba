"""The prompt of a run's samples: the beginning of a held-out sentence."""

import re
from collections.abc import Iterator

import numpy as np

from minigpt.data.corpus import Corpus
from minigpt.generation.stopping import StopFilter

_SEARCHED = 4096  # held-out tokens in which a sentence is looked for
_MOST_WORDS = 4
_FEWEST_WORDS = 6  # of a sentence, of which at most half are the prompt
_FEWEST_CHARACTERS, _MOST_CHARACTERS = 16, 6  # the same of a sentence without spaces, such as a Chinese one
_BLANK_LINE = re.compile(r"\n\s*\n")


def sample_prompt(corpus: Corpus, most: int) -> str:
    """The first words of a held-out sentence, at most `most` tokens; empty without one (the seam `sample_prompt`).

    It is not the first sentence of the held-out text, which may lack its beginning, if there is another. A text without
    sentences, such as a program, has lines. A chat log has questions instead.
    """
    if corpus.is_chat_log or not len(corpus.validation):
        return ""
    text = _beginning(corpus)
    sentences, lines = list(_sentences(text)), text.split("\n")[:-1]
    for candidate in (*sentences[1:], *lines[1:], *sentences[:1], *lines[:1]):
        for prompt in _first_words(candidate):
            if len(corpus.tokenizer.encode(prompt)) <= most:
                return prompt
    return ""


def _beginning(corpus: Corpus) -> str:
    """The beginning of the held-out text, up to the end of a document at which it is long enough."""
    tokens = np.asarray(corpus.validation[:_SEARCHED])
    ends = np.flatnonzero(tokens == corpus.tokenizer.end_of_text)
    parts = np.split(tokens, ends)
    return "\n\n".join(corpus.tokenizer.decode(part[part != corpus.tokenizer.end_of_text].tolist()) for part in parts)


def _sentences(text: str) -> Iterator[str]:
    """The complete sentences of a text, each without headings before it."""
    while True:
        sentence, is_complete = StopFilter((), "sentence").feed(text)
        if not is_complete:
            return
        text = text[len(sentence) :]
        yield _BLANK_LINE.split(sentence)[-1].strip()


def _first_words(sentence: str) -> Iterator[str]:
    """Prompts from the beginning of a sentence, the longest first; none of a short sentence."""
    words = list(re.finditer(r"\S+", sentence))
    if len(words) >= _FEWEST_WORDS:
        for count in range(min(_MOST_WORDS, len(words) // 2), 0, -1):
            yield sentence[words[0].start() : words[count - 1].end()]
    elif len(sentence) >= _FEWEST_CHARACTERS * max(1, len(words)):
        for count in range(_MOST_CHARACTERS, 0, -1):
            yield sentence[:count]
