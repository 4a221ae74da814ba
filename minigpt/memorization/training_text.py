"""Opens the text that a model was trained on, with the source file of each of its documents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minigpt.config import ReadingConfig
from minigpt.data.corpus import Corpus
from minigpt.data.sources import scan
from minigpt.evaluation.documents import Origin, document_origins
from minigpt.held_out.training_corpus import find_training_corpus
from minigpt.storage.checkpoint import Checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class TrainingText:
    """A corpus whose training part is searched.

    `origins` are those of its training documents, for a run's text by absolute path; None if the files cannot be read
    or have changed. `notes` say how the corpus differs from all that the model was trained on.
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
    found = scan(list(sources), **vars(reading))
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
    if corpus.weights or not corpus.has_text:
        notes.append("the text is a mixture, or was given as tokens, so it is not known in which file a passage is")
        return TrainingText(corpus, None, tuple(notes))
    if found is None or found.kept_hash != corpus.source_hash:
        why = "can no longer be read" if found is None else "has changed since training"
        notes.append(f"{names} {why}; locations refer to the text used in training")
        return TrainingText(corpus, None, tuple(notes))
    return TrainingText(corpus, document_origins(found, corpus.validation_fraction), tuple(notes))
