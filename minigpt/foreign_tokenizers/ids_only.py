"""The tokenizer of a model that has none: a text is token ids, written as numbers with spaces between them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from minigpt.errors import TokenizerError
from minigpt.tokenizer.config_files import CONFIG, write_json
from minigpt.tokenizer.files import IDS_ONLY
from minigpt.tokenizer.vocabulary import END_OF_TEXT, MAX_IDS, bytes_to_unicode


@dataclass(frozen=True)
class IdsOnly:
    """The ids of a model without a tokenizer: from 0 to `size` - 1; `end_id` ends a text."""

    size: int
    end_id: int

    prefix = ()
    kind = "none"
    unknown = None
    difference = program = ""
    is_lossless = False
    drops_first_space = True
    roles: ClassVar[dict[str, str]] = {}
    config: ClassVar[dict[str, Any]] = {}
    end_of_text = start_of_text = END_OF_TEXT

    def __post_init__(self) -> None:
        """Raises: TokenizerError if the numbers cannot be right."""
        size, end_id = self.size, self.end_id
        if type(size) is not int or not 0 < size <= MAX_IDS or type(end_id) is not int or not 0 <= end_id < size:
            raise TokenizerError(f"its ids ({size!r}, of which {end_id!r} ends a text) must be at most {MAX_IDS}")

    @property
    def special(self) -> dict[str, int]:
        """The end-of-text token."""
        return {END_OF_TEXT: self.end_id}

    @property
    def fingerprint(self) -> str:
        """A text that two of these share only if they read numbers as the same ids."""
        return f"none:{self.size}:{self.end_id}"

    @property
    def coder(self) -> "IdsOnly":
        """What reads ids."""
        return self

    @property
    def ids(self) -> dict[str, int]:
        """Every id in decimal after a space, as files write a space."""
        return {bytes_to_unicode(f" {id}".encode()): id for id in range(self.size)}

    @cached_property
    def tokens(self) -> list[bytes | None]:
        """Every id in decimal after a space."""
        return [f" {id}".encode() for id in range(self.size)]

    def encode(self, text: str) -> list[int]:
        """The ids in a text.

        Raises: TokenizerError if it has anything else.
        """
        ids = []
        for word in text.split():
            if not (word.isascii() and word.isdigit() and len(word) < 10 and int(word) < self.size):
                shown = word if len(word) <= 20 else f"{word[:20]}…"
                raise TokenizerError(
                    f"this model has no tokenizer, so its text must be token ids from 0 to {self.size - 1} with spaces"
                    f" between them, such as '15 7 201', not {shown!r}"
                )
            ids.append(int(word))
        return ids

    def encode_named(self, text: str) -> None:
        """Nothing: the parts of a text between the names of special tokens are encoded one by one."""

    def encode_array(self, text: str, *, documents: bool = False) -> npt.NDArray[np.uint32]:
        """The ids in a text; with `documents`, a literal "<|endoftext|>" is the end-of-text token.

        Raises: TokenizerError as `encode`; with `documents`, also for the id of the end-of-text token.
        """
        if not documents:
            return np.array(self.encode(text), dtype=np.uint32)
        ids: list[int] = []
        for index, part in enumerate(text.split(END_OF_TEXT)):
            encoded = self.encode(part)
            if self.end_id in encoded:  # it would end a document where no file says it: names and counts would be wrong
                raise TokenizerError(
                    f"this model has no tokenizer and its id {self.end_id} ends a text, so a text must not contain "
                    f"{self.end_id}; write {END_OF_TEXT} between texts instead"
                )
            ids += [self.end_id] * (index > 0) + encoded
        return np.array(ids, dtype=np.uint32)

    def losses(self) -> list[str]:
        """What of a text is not in its ids."""
        return []

    def write(self, directory: Path, options: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Writes the file by which a folder says that its model has no tokenizer."""
        write_json(directory / CONFIG, {IDS_ONLY: [self.size, self.end_id]})
