"""Shows what a generated text copies from the text that its model was trained on."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from minigpt.cli.render.console import byte_progress, console
from minigpt.cli.render.units import count, size
from minigpt.errors import ConfigError, DataError
from minigpt.tokenizer.display import LAYOUT, visible

if TYPE_CHECKING:
    from minigpt.data.corpus import Corpus
    from minigpt.evaluation.memorization.index import CopiedRun, Memorization, MemorizationIndex
    from minigpt.evaluation.memorization.origins import Origin
    from minigpt.storage.checkpoint import Checkpoint

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_LAST_SAMPLES = 3  # that the summary of a run covers
_MOST_QUOTED = 60  # characters of a run that are shown beside its location


class MemorizationMeter:
    """Measures texts against the index of one training text; prints the result or returns it as JSON.

    `origins` are the source files of the training documents; None if they are not known.
    """

    def __init__(self, index: "MemorizationIndex", origins: "list[Origin] | None", min_words: int) -> None:
        self.index, self.origins, self.min_words = index, origins, min_words

    def measure(self, text: str, prompt: str) -> "Memorization":
        """Measures how much of a text is copied, without its prompt."""
        return self.index.measure(text, prompt, self.min_words)

    def show(self, prompt: str, text: str) -> None:
        """Prints a continuation with its long copied runs marked, and where they come from."""
        measured = self.measure(text, prompt)
        out = console(stderr=False)
        escape = for_terminal if out.is_terminal else str
        line = Text(escape(prompt)).append(highlighted(text, measured, escape))
        out.print(line, soft_wrap=True)
        out.print()
        out.print(summary_line(measured), markup=False, soft_wrap=True)
        for run in measured.long_runs or ([measured.longest] if measured.longest else []):
            out.print(Text(f"  {run_line(run, measured, text, self._location(run))}"), soft_wrap=True)

    def record(self, prompt: str, text: str) -> dict[str, Any]:
        """The figures, and every long copied run with its location, for JSON."""
        measured = self.measure(text, prompt)
        runs = [
            {"start": run.start, "end": run.end, "words": run.words, "text": text[run.start : run.end]}
            | {"times": run.occurrences, **self._location_record(run)}
            for run in measured.long_runs
        ]
        corpus = self.index.corpus
        return {
            **measured.figures(),
            "words": measured.words,
            "runs": runs,
            "sources": list(corpus.sources),
            "training_bytes": corpus.train_bytes,
            "indexed_bytes": self.index.indexed_bytes,
        }

    def _location_record(self, run: "CopiedRun") -> dict[str, Any]:
        location = self.index.locate(run.position)
        if self.origins is None:
            return {"file": None, "document": location.document, "line": location.line}
        origin = self.origins[location.document - 1]
        return {"file": origin.file, "document": origin.document, "line": location.line}

    def _location(self, run: "CopiedRun") -> str:
        record = self._location_record(run)
        name = record["file"] or "the training text"
        document = f", document {record['document']:,}" if record["document"] is not None else ""
        return f"{visible(name)}{document}, line {record['line']:,}"


def for_terminal(text: str) -> str:
    """The text with its line breaks; other control characters become visible, so that they do not act."""
    return visible(text, keep=LAYOUT)


def highlighted(text: str, measured: "Memorization", escape: Callable[[str], str] = for_terminal) -> Text:
    """The text with its long copied runs in numbered ⟦ ⟧, underlined if the terminal can."""
    line, done = Text(), 0
    for number, (start, end) in enumerate(measured.spans, 1):
        line.append(escape(text[done:start]))
        line.append(f"⟦{escape(text[start:end])}⟧{_superscript(number)}", style="underline yellow")
        done = end
    return line.append(escape(text[done:]))


def summary_line(measured: "Memorization") -> str:
    """How much is copied, in one line."""
    longest = measured.longest
    if longest is None:
        return f"copied from the training text: none of {count(measured.words, 'word')}"
    return (
        f"copied from the training text: {measured.share:.0%} of {count(measured.words, 'word')}, in runs of "
        f"{measured.min_words} words or more; longest run {count(longest.words, 'word')} "
        f"({count(longest.end - longest.start, 'character')})"
    )


def run_line(run: "CopiedRun", measured: "Memorization", text: str, location: str) -> str:
    """A copied run in one line: the number of its highlighted span, its words, and where they come from."""
    quoted = " ".join(text[run.start : run.end].split())
    quoted = quoted if len(quoted) <= _MOST_QUOTED else quoted[: _MOST_QUOTED - 1] + "…"
    first = "" if run.occurrences == 1 else f" (first of {run.occurrences:,} occurrences)"
    return f"{_span_number(run, measured)}{count(run.words, 'word')} “{visible(quoted)}”: {location}{first}"


def _span_number(run: "CopiedRun", measured: "Memorization") -> str:
    for number, (start, end) in enumerate(measured.spans, 1):
        if start <= run.start and run.end <= end and run.words >= measured.min_words:
            return f"{_superscript(number)} "
    return ""


def samples_text(log: Iterable[Mapping[str, Any]]) -> str | None:
    """How much of a run's last samples is copied from its text; None if the log has no such figures."""
    last = [line for line in log if "copied_share" in line][-_LAST_SAMPLES:]
    if not last:
        return None
    share = sum(line["copied_share"] for line in last) / len(last)  # the samples have about the same length
    longest = max(line["longest_copied_words"] for line in last)
    samples = f"last {len(last)} samples" if len(last) > 1 else "last sample"
    min_words = last[-1]["copied_at_least"]
    return f"{share:.0%} of the {samples}, in runs of {min_words} words or more; longest run {count(longest, 'word')}"


def open_meter(checkpoint: "Checkpoint", sources: list[str], min_words: int) -> MemorizationMeter:
    """Opens the index of a model's training text, or of the given sources; notes go to stderr.

    Raises: ConfigError if the training text cannot be found; DataError for sources that cannot be read.
    """
    from minigpt.evaluation.memorization.index import MemorizationIndex

    out = console()
    corpus, origins = _corpus_of(sources, checkpoint, out) if sources else _training_corpus(checkpoint, out)
    with out.status("indexing the training text …"):
        index = MemorizationIndex.open(corpus)
    if not index.is_complete:
        out.print(
            f"only {size(index.indexed_bytes)} of the {size(corpus.train_bytes)} of training text are searched, in "
            "evenly spaced blocks; there may be longer copies",
            markup=False,
            soft_wrap=True,
        )
    return MemorizationMeter(index, origins, min_words)


def _corpus_of(sources: list[str], checkpoint: "Checkpoint", out: Console) -> "tuple[Corpus, list[Origin] | None]":
    from minigpt.data.corpus import Corpus
    from minigpt.data.sources import scan
    from minigpt.evaluation.memorization.origins import document_origins

    found = scan(sources)
    with byte_progress(out, "tokenizing") as progress:
        corpus = Corpus.build(found, checkpoint.tokenizer, validation_fraction=0, progress=progress)
    return corpus, document_origins(found, 0)


def _training_corpus(checkpoint: "Checkpoint", out: Console) -> "tuple[Corpus, list[Origin] | None]":
    """The corpus that a run was trained on, from the cache, and its documents' files if they are unchanged."""
    from minigpt.data.corpus import Corpus
    from minigpt.data.sources import scan
    from minigpt.evaluation.memorization.origins import document_origins

    record, directory = checkpoint.record, checkpoint.directory
    if record is None or record.corpus is None or record.reading is None or not record.sources:
        raise ConfigError(f"{directory} does not record what it was trained on; name that text with --corpus")
    names, recorded, reading = ", ".join(record.sources), record.corpus, record.reading
    folder = recorded.path or "the cache"  # early runs did not record it
    try:
        found = None
        if "-" not in record.sources:
            found = scan(list(record.sources), text_key=reading.text_key, encoding_errors=reading.encoding_errors)
    except DataError:
        found = None
    try:
        corpus = Corpus.load(folder)
        if corpus.fingerprint != recorded.fingerprint:
            raise DataError(f"{folder} holds another corpus")
    except DataError as error:
        rebuilt = found and Corpus.build(found, checkpoint.tokenizer, validation_fraction=reading.validation_fraction)
        if not rebuilt or rebuilt.fingerprint != recorded.fingerprint:
            raise ConfigError(
                f"the text that {directory} was trained on is no longer in {folder}, and {names} "
                f"{'has changed since' if rebuilt else 'cannot be read'}; name the text with --corpus"
            ) from error
        corpus = rebuilt
    if record.base:
        text = f"compared with {names} only, not with the training text of {record.base}"
        out.print(text, markup=False, soft_wrap=True)
    if found is None or found.content_hash != corpus.source_hash:
        why = "can no longer be read" if found is None else "has changed since training"
        out.print(f"{names} {why}; locations refer to the text used in training", markup=False, soft_wrap=True)
        return corpus, None
    return corpus, document_origins(found, corpus.validation_fraction)


def _superscript(number: int) -> str:
    return str(number).translate(_SUPERSCRIPTS)
