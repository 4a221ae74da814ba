"""What the sources of a run hold, before it is tokenized: one text, or what an edge reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from minigpt.config import ReadingConfig
from minigpt.data.corpus import Corpus, corpus_fingerprint
from minigpt.data.sources import Scan, scan
from minigpt.data.token_writer import ByteProgress
from minigpt.edges import provided
from minigpt.tokenizer.bpe_training import default_tokenizer
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.units import count


@dataclass(frozen=True)
class Texts:
    """One text; a subclass of an edge may have several, or files of tokens, which have no `scans`."""

    scans: Sequence[Scan]

    @property
    def single(self) -> Scan | None:
        """The text, if there is one only."""
        return self.scans[0]

    def build(
        self,
        tokenizer: Tokenizer | str | None,
        *,
        cache: str | Path | None = None,
        validation_fraction: float | None = None,
        progress: ByteProgress | None = None,
    ) -> Corpus:
        """Like `Corpus.build`; without a tokenizer, one is chosen for the size of the text."""
        return Corpus.build(
            self.scans[0],
            tokenizer or self.default_tokenizer,
            cache=cache,
            validation_fraction=validation_fraction,
            progress=progress,
        )

    @property
    def default_tokenizer(self) -> str:
        """The tokenizer for texts of this size."""
        return default_tokenizer(sum(text.text_bytes for text in self.scans))

    def fingerprint(self, tokenizer: Tokenizer, validation_fraction: float | None) -> str:
        """The fingerprint of the corpus that `build` makes."""
        return corpus_fingerprint(self.scans[0], tokenizer, validation_fraction)

    def notices(self, corpus: Corpus) -> list[str]:  # noqa: ARG002
        """What the user should know of the texts, which have become this corpus."""
        found: list[str] = []
        for text in self.scans:
            found += text.notes
            if text.duplicates:
                found.append(f"dropped {count(len(text.duplicates), 'document')} equal to an earlier one")
        return found


class TokenReader(Protocol):
    """Reads more than one text, or tokens; edges provide it at the seam "token_reader"."""

    def find(self, sources: Sequence[str], reading: ReadingConfig, cache: Path | None) -> Texts | None:
        """What these sources hold; None if it reads them no differently. It may keep what it finds in `cache`."""

    def has_tokens(self, source: str) -> bool:
        """Whether a source names tokens, not text."""

    def open(self, folder: Path, record: dict[str, Any], tokenizer: Tokenizer | None) -> Corpus | None:
        """The corpus that a folder of the cache records in its corpus.json, of a class of the edge; None for others.

        `tokenizer` is the one in the folder, if it is loaded already.
        """


def find_texts(sources: Sequence[str], reading: ReadingConfig, cache: Path | None = None) -> Texts:
    """Reads the sources as one text or as an edge does, which may keep what it finds in the folder `cache`.

    Raises: DataError, ConfigError as `scan`.
    """
    for reader in provided("token_reader"):
        if (texts := reader.find(sources, reading, cache)) is not None:
            return texts
    return Texts([scan(list(sources), **vars(reading))])


def has_tokens(source: str) -> bool:
    """Whether a source names tokens, not text."""
    return any(reader.has_tokens(source) for reader in provided("token_reader"))
