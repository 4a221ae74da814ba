"""Encodes text by the tokens and merges of a byte-level vocabulary, with tiktoken."""

import numpy as np
import numpy.typing as npt
import tiktoken

from minigpt.errors import TokenizerError
from minigpt.tokenizer.vocabulary import END_OF_TEXT, Vocabulary, replace_surrogates

# GPT-2's split into pre-tokens, which no merge crosses: contractions, letters, numbers, other characters, white space.
# The last white-space character before a pre-token belongs to it. This gives the same split as GPT-2's pattern, except
# in white space of more than 50,000 characters. It has possessive quantifiers ("++"), and a bound on runs of white
# space, because `\s+(?!\S)` overflows the regex engine's stack on long ones.
# Source: openai/gpt-2, src/encoder.py; the possessive form is tiktoken's.
_GPT2_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s{0,50000}\s(?=\s)|\s"
_CHARACTERS = r"[\s\S]"


class ByteLevelCoder:
    """Encodes text with tiktoken. `tokens` has the bytes of every token by id, None for an unused id."""

    is_lossless = True
    drops_first_space = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        named = {**vocabulary.special, **vocabulary.added}
        size = max(*vocabulary.tokens.values(), *named.values()) + 1
        self.tokens: list[bytes | None] = [None] * size
        for token, id in vocabulary.tokens.items():
            self.tokens[id] = token
        for name, id in named.items():
            self.tokens[id] = name.encode()
        self._added = frozenset(vocabulary.added)
        markers = {END_OF_TEXT: vocabulary.special[vocabulary.end_of_text], **vocabulary.added}
        ids = vocabulary.reachable_tokens
        # tiktoken's ids are also the ranks of the merges. Ids that are not in this order are mapped after encoding.
        in_order = bool((np.diff(np.fromiter(ids.values(), np.int64)[256:]) > 0).all())
        self._ids = None if in_order else np.array([*ids.values(), *markers.values()], dtype=np.uint32)
        try:
            self._encoding = tiktoken.Encoding(
                "minigpt",
                pat_str=_CHARACTERS if vocabulary.by_character else _GPT2_SPLIT,
                mergeable_ranks=ids if in_order else {token: rank for rank, token in enumerate(ids)},
                special_tokens=markers if in_order else {name: len(ids) + index for index, name in enumerate(markers)},
            )
        except ValueError as error:  # the pattern of all added tokens is larger than the regular expressions may be
            size = sum(len(name.encode()) for name in vocabulary.added)
            raise TokenizerError(f"its {len(self._added):,} added tokens are too long: {size:,} bytes") from error

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        if self._ids is not None:
            return self.encode_array(text).tolist()
        return self._encoding.encode(text, allowed_special=self._added, disallowed_special=())

    def encode_array(self, text: str, *, documents: bool = False) -> npt.NDArray[np.uint32]:
        """The ids of a text; with `documents`, a literal "<|endoftext|>" is the end-of-text token."""
        special = {END_OF_TEXT, *self._added} if documents else self._added
        try:
            ids = self._encoding.encode_to_numpy(text, allowed_special=special, disallowed_special=())
        except UnicodeEncodeError:
            return self.encode_array(replace_surrogates(text), documents=documents)
        return ids if self._ids is None else self._ids[ids]
