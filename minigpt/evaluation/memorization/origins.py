"""Finds the source file of each document in a corpus's training part, by reading the sources again."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from minigpt.data.sources import Piece, Scan
from minigpt.data.split import ValidationSplit
from minigpt.tokenizer.vocabulary import END_OF_TEXT


@dataclass(frozen=True)
class Origin:
    """The file of a document, as the user named it, and the document's number there.

    Units: `document` counts from 1; it is None if the file has only one document.
    """

    file: str
    document: int | None


def document_origins(found: Scan, validation_fraction: float | None) -> list[Origin]:
    """The origin of each document in the training part, in its order."""
    if found.n_documents == 1 and len(found.files) == 1:
        return [Origin(found.files[0].name, None)]
    reader = _Reader(found)
    origins: list[tuple[int, int]] = []
    for part, text in ValidationSplit.plan(found, validation_fraction).apply(reader.pieces()):
        if part == "train" and text.endswith(END_OF_TEXT):
            origins.append((reader.file, reader.document))  # the reader has not reached the next document yet
    return [
        Origin(found.files[file].name, document if reader.documents[file] > 1 else None) for file, document in origins
    ]


class _Reader:
    """Reads the documents file by file and counts them."""

    def __init__(self, found: Scan) -> None:
        self.found = found
        self.file = self.document = 0  # of the piece that was read last
        self.documents = [0] * len(found.files)

    def pieces(self) -> Iterator[Piece]:
        for number, file in enumerate(self.found.files):
            self.file = number
            for piece, ends in replace(self.found, files=(file,)).pieces():
                self.document = self.documents[self.file] + 1
                self.documents[self.file] += ends
                yield piece, ends
