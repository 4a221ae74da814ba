"""The documents of a text: their names, and their tokens as one stream to evaluate."""

from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.data.corpus import Corpus
from minigpt.data.sources import Scan


def document_labels(found: Scan) -> list[str]:
    """The name of each document: its file, and its number there if the file has several."""
    if found.n_documents == 1 and len(found.files) == 1:
        return [found.files[0].name]
    labels = []
    for file in found.files:
        n_documents = sum(ends_document for _, ends_document in found.pieces_of(file))
        numbered = [f"{file.name} #{number}" for number in range(1, n_documents + 1)]
        labels += [file.name] if n_documents == 1 else numbered
    return labels


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
