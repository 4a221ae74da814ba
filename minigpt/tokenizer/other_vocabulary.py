"""Tokenizers of other rules than byte-level BPE, which edges read and run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from minigpt.edges import provided
from minigpt.tokenizer.config_files import TokenizerConfig


class Coder(Protocol):
    """Encodes text by the rules of a tokenizer."""

    @property
    def tokens(self) -> Sequence[bytes | None]:
        """The bytes of every token by id, None for an unused id."""

    @property
    def is_lossless(self) -> bool:
        """Whether decoding the ids of a text gives the text back."""

    @property
    def drops_first_space(self) -> bool:
        """Whether the bytes of the first token of a text begin with a space that is not in the text."""

    def encode(self, text: str) -> list[int]: ...
    def encode_named(self, text: str) -> list[int] | None:
        """The ids of a text in which the names of special tokens are these tokens; None if the parts of the text
        between the names can be encoded one by one."""

    def encode_array(self, text: str, *, documents: bool = False) -> npt.NDArray[np.uint32]:
        """The ids of a text; with `documents`, a literal "<|endoftext|>" is the end-of-text token."""

    def losses(self) -> list[str]:
        """What of a text is not in its ids."""


class OtherVocabulary(Protocol):
    """A tokenizer of other rules. The attributes that `Vocabulary` has too mean the same there."""

    @property
    def special(self) -> Mapping[str, int]: ...
    @property
    def end_of_text(self) -> str: ...
    @property
    def start_of_text(self) -> str: ...
    @property
    def roles(self) -> Mapping[str, str]: ...
    @property
    def prefix(self) -> Sequence[int]: ...
    @property
    def unknown(self) -> str | None:
        """The token that stands for characters without a token."""

    @property
    def ids(self) -> Mapping[str, int]:
        """Every token as files write it."""

    @property
    def kind(self) -> str:
        """What the name of the tokenizer begins with."""

    @property
    def program(self) -> str:
        """What runs the tokenizer, as a sentence names it; empty for minigpt."""

    @property
    def difference(self) -> str:
        """The rule by which it is not a byte-level BPE."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Entries of tokenizer_config.json, such as `tokenizer_class`."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def coder(self) -> Coder: ...
    def write(self, directory: Path, options: Mapping[str, Any]) -> None:
        """Writes its files, with these further entries of tokenizer_config.json."""


@dataclass(frozen=True)
class TokenizerReader:
    """Reads tokenizers of other rules; edges provide it at the seam "tokenizer_reader".

    `files` are the names of the files that it reads and writes beside tokenizer.json and its config files. `read` gets
    a folder, what its config files say, the end-of-text token if the user named one, and the rule of the folder's
    tokenizer.json, or vocab.json and merges.txt, that is another ("" if it has none of them). It returns None for what
    it does not read.
    """

    files: Sequence[str]
    read: Callable[[Path, TokenizerConfig, str | None, str], OtherVocabulary | None]


def other_files() -> list[str]:
    """The names of the files that edges read."""
    return [name for reader in provided("tokenizer_reader") for name in reader.files]


def read_other(
    directory: Path, config: TokenizerConfig, end_of_text: str | None = None, difference: str = ""
) -> OtherVocabulary | None:
    """The tokenizer in a directory; see `TokenizerReader`."""
    found = (reader.read(directory, config, end_of_text, difference) for reader in provided("tokenizer_reader"))
    return next((vocabulary for vocabulary in found if vocabulary is not None), None)
