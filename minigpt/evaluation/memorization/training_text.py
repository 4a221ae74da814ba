"""Opens the text that a model was trained on, with the source file of each of its documents."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from minigpt.config import ReadingConfig
from minigpt.data.corpus import Corpus
from minigpt.data.sources import Piece, Scan, scan
from minigpt.data.split import ValidationSplit
from minigpt.evaluation.training_corpus import find_training_corpus
from minigpt.storage.checkpoint import Checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import END_OF_TEXT


@dataclass(frozen=True)
class Origin:
    """The file of a document, and the document's number there.

    The file of a run's text is named by its absolute path, a given one as it was given.

    Units: `document` counts from 1; it is None if the file has only one document.
    """

    file: str
    document: int | None


@dataclass(frozen=True)
class TrainingText:
    """A corpus whose training part is searched.

    `origins` are the origins of its training documents, None if the files cannot be read or have changed. `notes` say
    how the corpus differs from all that the model was trained on.
    """

    corpus: Corpus
    origins: list[Origin] | None
    notes: tuple[str, ...] = ()


def read_text(
    sources: Sequence[str],
    tokenizer: Tokenizer,
    reading: ReadingConfig,
    progress: Callable[[int, int], None] | None = None,
) -> TrainingText:
    """Reads the given sources as the training text, without a validation part.

    Raises: DataError for sources that cannot be read.
    """
    found = scan(list(sources), encoding=reading.encoding, encoding_errors=reading.encoding_errors)
    corpus = Corpus.build(found, tokenizer, validation_fraction=0, progress=progress)
    return TrainingText(corpus, document_origins(found, 0), tuple(found.notes))


def find_training_text(checkpoint: Checkpoint) -> TrainingText:
    """Finds the corpus that a run was trained on: in the cache, or built again from the same sources.

    Raises: ConfigError if the run does not record its text, or the text cannot be found.
    """
    corpus, found = find_training_corpus(checkpoint, fix="name the text with --corpus")
    record = checkpoint.record
    assert record is not None
    names = ", ".join(record.sources)
    notes = [f"compared with {names} only, not with the training text of {record.base}"] if record.base else []
    if corpus.weights:
        notes.append("the text is a mixture, so it is not known in which file a passage is")
        return TrainingText(corpus, None, tuple(notes))
    if found is None or found.kept_hash != corpus.source_hash:
        why = "can no longer be read" if found is None else "has changed since training"
        notes.append(f"{names} {why}; locations refer to the text used in training")
        return TrainingText(corpus, None, tuple(notes))
    return TrainingText(corpus, document_origins(found, corpus.validation_fraction), tuple(notes))


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
            for piece, ends in self.found.pieces_of(file):
                self.document = self.documents[self.file] + 1
                self.documents[self.file] += ends
                yield piece, ends
