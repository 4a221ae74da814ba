"""Measures what a generated text copies from the text that its model was trained on."""

from typing import TYPE_CHECKING, Any

from rich.text import Text

from minigpt.cli.render.console import console, progress_bar
from minigpt.cli.render.continuations import Continuation, Output
from minigpt.cli.render.terminal import note
from minigpt.config import ReadingConfig
from minigpt.data.source_files import path_from_here
from minigpt.memorization.drawing import highlighted, run_line, summary_line
from minigpt.tokenizer.display import visible
from minigpt.units import size

if TYPE_CHECKING:
    from minigpt.evaluation.documents import Origin
    from minigpt.memorization.index import CopiedRun, Memorization, MemorizationIndex
    from minigpt.storage.checkpoint import Checkpoint


class MemorizationMeter(Output):
    """Measures texts against the index of one training text; prints the result, or adds it to a JSON record.

    `origins` are the source files of the training documents; None if they are not known.
    """

    def __init__(self, index: "MemorizationIndex", origins: "list[Origin] | None", min_words: int) -> None:
        self.index, self.origins, self.min_words = index, origins, min_words

    def measure(self, text: str, prompt: str) -> "Memorization":
        return self.index.measure(text, prompt, self.min_words)

    def write(self, continuation: Continuation) -> None:
        """Prints a continuation with its long copied runs marked, and the locations of the originals."""
        prompt, text = continuation.prompt, continuation.text
        measured = self.measure(text, prompt)
        out = console(stderr=False)
        line = Text(visible(prompt, is_text=True)).append(highlighted(text, measured))
        out.print(line, soft_wrap=True)
        out.print()
        out.print(summary_line(measured), soft_wrap=True)
        for run in measured.long_runs or ([measured.longest] if measured.longest else []):
            out.print(Text(f"  {run_line(run, measured, text, self._location(run))}"), soft_wrap=True)

    def record(self, continuation: Continuation) -> dict[str, Any]:
        """The figures and every long copied run with its location."""
        prompt, text = continuation.prompt, continuation.text
        measured = self.measure(text, prompt)
        runs = [
            {"start": run.start, "end": run.end, "text": text[run.start : run.end]}
            | {"words": run.extent.words, "unspaced": run.extent.characters}
            | {"times": run.occurrences, **self._location_record(run)}
            for run in measured.long_runs
        ]
        corpus = self.index.corpus
        figures = {
            **measured.figures(),
            "words": measured.extent.words,
            "unspaced": measured.extent.characters,
            "runs": runs,
            "sources": list(corpus.sources),
            "training_bytes": corpus.train_bytes,
            "indexed_bytes": self.index.indexed_bytes,
        }
        return {"memorization": figures}

    def _location_record(self, run: "CopiedRun") -> dict[str, Any]:
        location = self.index.locate(run.position)
        if self.origins is None:
            return {"file": None, "document": location.document, "line": location.line}
        origin = self.origins[location.document - 1]
        return {"file": origin.file, "document": origin.document, "line": location.line}

    def _location(self, run: "CopiedRun") -> str:
        record = self._location_record(run)
        name = "the training text" if record["file"] is None else path_from_here(record["file"])
        document = f", document {record['document']:,}" if record["document"] is not None else ""
        return f"{visible(name)}{document}, line {record['line']:,}"


def open_meter(
    checkpoint: "Checkpoint", sources: list[str], min_words: int | None, reading: ReadingConfig
) -> MemorizationMeter:
    """Opens the index of a model's training text, or of the given sources; notes go to stderr."""
    from minigpt.memorization.index import MemorizationIndex
    from minigpt.memorization.training_text import find_training_text, read_text
    from minigpt.memorization.words import LONG_RUN

    out = console()
    if sources:
        recorded = checkpoint.record.reading if checkpoint.record else None
        if recorded is not None:  # the given texts are read as the training text was, in the given encoding
            reading = recorded.replace(encoding=reading.encoding, encoding_errors=reading.encoding_errors)
        with progress_bar(out, "tokenizing", in_bytes=True) as progress:
            text = read_text(sources, checkpoint.tokenizer, reading, progress)
    else:
        text = find_training_text(checkpoint)
    with out.status("indexing the training text …"):
        index = MemorizationIndex.open(text.corpus)
    notes = list(text.notes)
    if not index.is_complete:
        notes.append(
            f"only {size(index.indexed_bytes)} of the {size(text.corpus.train_bytes)} of training text are searched, "
            "in evenly spaced blocks; there may be longer copies"
        )
    for each in notes:
        note(each)
    return MemorizationMeter(index, text.origins, min_words or LONG_RUN)
