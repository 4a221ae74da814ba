"""The documents of a text: their files, and their tokens as one stream to evaluate."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.data.corpus import Corpus
from minigpt.data.sources import Piece, Scan
from minigpt.data.split import ValidationSplit
from minigpt.tokenizer.vocabulary import END_OF_TEXT


@dataclass(frozen=True)
class Origin:
    """The file of a document, and the document's number there.

    Units: `document` counts from 1; it is None if the file has only one document.
    """

    file: str
    document: int | None

    @property
    def label(self) -> str:
        return self.file if self.document is None else f"{self.file} #{self.document}"


def document_origins(found: Scan, validation_fraction: float | None) -> list[Origin]:
    """The origin of each document in the training part, in its order; of every document for a fraction of 0."""
    if found.n_documents == 1 and len(found.files) == 1:
        return [Origin(found.files[0].name, None)]
    documents = [0] * len(found.files)  # read so far
    current = 0, 0  # the file and the document of the piece that was read last

    def pieces() -> Iterator[Piece]:
        nonlocal current
        for number, file in enumerate(found.files):
            for piece, ends in found.pieces_of(file):
                current = number, documents[number] + 1
                documents[number] += ends
                yield piece, ends

    parts = ValidationSplit.plan(found, validation_fraction).apply(pieces())
    # At the end of a document, the first piece of the next one has not been read yet.
    origins = [current for part, text in parts if part == "train" and text.endswith(END_OF_TEXT)]
    return [Origin(found.files[file].name, document if documents[file] > 1 else None) for file, document in origins]


def document_stream(corpus: Corpus, limit: int | None = None) -> npt.NDArray[Any]:
    """The training tokens of the first `limit` documents, or of all, after a start-of-text. Shapes: (N + 1,).

    The start-of-text lets a model predict the first token too. For most tokenizers it is the end-of-text.
    """
    stream, start, end = corpus.train, corpus.tokenizer.start_of_text, corpus.tokenizer.end_of_text
    if limit is not None and limit < corpus.n_documents:
        stream = stream[: int(np.flatnonzero(stream == end)[limit - 1]) + 1]
    elif start != end and stream[-1:].tolist() == [start]:  # it follows every document, the last one too
        stream = stream[:-1]
    return np.insert(stream, 0, start)
