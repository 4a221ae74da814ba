"""From which file each document of a corpus's training part came; it reads the sources again and keeps no text."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from minigpt.data.sources import Piece, Scan
from minigpt.data.split import Holdout
from minigpt.tokenizer.vocabulary import END_OF_TEXT


@dataclass(frozen=True)
class Origin:
    """A document's file, by the user's name for it, and its number there, counted from 1; None where it is alone."""

    file: str
    document: int | None


def training_documents(found: Scan, validation_fraction: float | None) -> list[Origin]:
    """The origins of the documents in the training part, in its order."""
    if found.n_documents == 1 and len(found.files) == 1:
        return [Origin(found.files[0].name, None)]
    reader = _Reader(found)
    places: list[tuple[int, int]] = []
    for part, text in Holdout.plan(found, validation_fraction).divide(reader.pieces()):
        if part == "train" and text.endswith(END_OF_TEXT):
            places.append((reader.file, reader.document))  # nothing of the next document is read yet
    return [
        Origin(found.files[file].name, document if reader.documents[file] > 1 else None) for file, document in places
    ]


class _Reader:
    """Reads the documents file by file and knows which one it is at."""

    def __init__(self, found: Scan) -> None:
        self.found = found
        self.file = self.document = 0
        self.documents = [0] * len(found.files)

    def pieces(self) -> Iterator[Piece]:
        for number, file in enumerate(self.found.files):
            self.file = number
            for piece, ends in replace(self.found, files=(file,)).pieces():
                self.document = self.documents[self.file] + 1
                self.documents[self.file] += ends
                yield piece, ends
