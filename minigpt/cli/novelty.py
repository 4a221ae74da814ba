"""What of a generated text is copied from the text that its model was trained on, and how that looks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from minigpt.cli.render.console import byte_progress, console
from minigpt.cli.render.units import count, size
from minigpt.errors import ConfigError, DataError
from minigpt.tokenizer.display import LAYOUT, visible

if TYPE_CHECKING:
    from minigpt.data.corpus import Corpus
    from minigpt.evaluation.memorization.copies import CopiedRun, CopyIndex, Copying
    from minigpt.evaluation.memorization.documents import Origin
    from minigpt.storage.checkpoint import Checkpoint

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_QUOTED = 60  # characters of a run that are shown beside its place


class Novelty:
    """The index of one training text; it measures texts and prints what it found, or gives it for JSON."""

    def __init__(self, index: "CopyIndex", origins: "list[Origin] | None", at_least: int) -> None:
        self.index, self.origins, self.at_least = index, origins, at_least

    def measure(self, text: str, prompt: str) -> "Copying":
        """How much of a text is copied, its prompt left out."""
        return self.index.measure(text, prompt, self.at_least)

    def show(self, prompt: str, text: str) -> None:
        """Prints a continuation with its long copied runs marked, and where they come from."""
        copying = self.measure(text, prompt)
        out = console(stderr=False)
        shown = on_terminal if out.is_terminal else str
        line = Text(shown(prompt)).append(marked(text, copying, shown))
        out.print(line, soft_wrap=True)
        out.print()
        out.print(f"copied: {figures(copying)}", markup=False, soft_wrap=True)
        for run in copying.long_runs or ([copying.longest] if copying.longest else []):
            out.print(Text(f"  {described(run, copying, text, self._where(run))}"), soft_wrap=True)

    def record(self, prompt: str, text: str) -> dict[str, Any]:
        """The figures, and every long copied run with its place, for JSON."""
        copying = self.measure(text, prompt)
        runs = [
            {"start": run.start, "end": run.end, "words": run.words, "text": text[run.start : run.end]}
            | {"times": run.times, **self._place(run)}
            for run in copying.long_runs
        ]
        corpus = self.index.corpus
        return {
            **copying.figures(),
            "words": copying.words,
            "runs": runs,
            "sources": list(corpus.sources),
            "training_bytes": corpus.train_bytes,
            "indexed_bytes": self.index.indexed_bytes,
        }

    def _place(self, run: "CopiedRun") -> dict[str, Any]:
        passage = self.index.locate(run.place)
        if self.origins is None:
            return {"file": None, "document": passage.document, "line": passage.line}
        origin = self.origins[passage.document - 1]
        return {"file": origin.file, "document": origin.document, "line": passage.line}

    def _where(self, run: "CopiedRun") -> str:
        place = self._place(run)
        where = place["file"] or "the training text"
        where += f", document {place['document']:,}" if place["document"] is not None else ""
        return f"{visible(where)}, line {place['line']:,}"


def on_terminal(text: str) -> str:
    """The text with its lines, and nothing else in it that acts on a terminal."""
    return visible(text, keep=LAYOUT)


def marked(text: str, copying: "Copying", shown: Callable[[str], str] = on_terminal) -> Text:
    """The text, as `shown`, with its long copied runs in ⟦ ⟧, numbered, and underlined where the terminal can."""
    line, done = Text(), 0
    for number, (start, end) in enumerate(copying.spans, 1):
        line.append(shown(text[done:start]))
        line.append(f"⟦{shown(text[start:end])}⟧{_superscript(number)}", style="underline yellow")
        done = end
    return line.append(shown(text[done:]))


def figures(copying: "Copying") -> str:
    """The meter's figures in a line."""
    longest = copying.longest
    if longest is None:
        return f"none of the {count(copying.words, 'word')} stands in the training text"
    return (
        f"longest run {count(longest.words, 'word')}, {count(longest.end - longest.start, 'character')}; "
        f"{copying.share:.0%} of {count(copying.words, 'word')} in runs of {copying.at_least} words or more"
    )


def described(run: "CopiedRun", copying: "Copying", text: str, where: str) -> str:
    """A copied run in a line: the number of the marked stretch that it is in, its words, and where they stand."""
    quoted = " ".join(text[run.start : run.end].split())
    quoted = quoted if len(quoted) <= _QUOTED else quoted[: _QUOTED - 1] + "…"
    times = "" if run.times == 1 else f", the first of {run.times:,} times"
    return f"{_mark(run, copying)}{count(run.words, 'word')} “{visible(quoted)}”: {where}{times}"


def _mark(run: "CopiedRun", copying: "Copying") -> str:
    for number, (start, end) in enumerate(copying.spans, 1):
        if start <= run.start and run.end <= end and run.words >= copying.at_least:
            return f"{_superscript(number)} "
    return ""


def open_novelty(checkpoint: "Checkpoint", sources: list[str], at_least: int) -> Novelty:
    """The index of a model's own training text, or of other sources; what is to be known of it goes to stderr.

    Raises: ConfigError where the text is nowhere to be found; DataError for sources that cannot be read.
    """
    from minigpt.evaluation.memorization.copies import CopyIndex

    out = console()
    corpus, origins = _given_corpus(sources, checkpoint, out) if sources else _own_corpus(checkpoint, out)
    with out.status("indexing the training text …"):
        index = CopyIndex.open(corpus)
    if not index.is_whole:
        out.print(
            f"of {size(corpus.train_bytes)} of training text, {size(index.indexed_bytes)} spread evenly are looked "
            "through: there may be longer copies",
            markup=False,
            soft_wrap=True,
        )
    return Novelty(index, origins, at_least)


def _given_corpus(sources: list[str], checkpoint: "Checkpoint", out: Console) -> "tuple[Corpus, list[Origin] | None]":
    from minigpt.data.corpus import Corpus
    from minigpt.data.sources import scan
    from minigpt.evaluation.memorization.documents import training_documents

    found = scan(sources)
    with byte_progress(out, "tokenizing") as progress:
        corpus = Corpus.build(found, checkpoint.tokenizer, validation_fraction=0, progress=progress)
    return corpus, training_documents(found, 0)


def _own_corpus(checkpoint: "Checkpoint", out: Console) -> "tuple[Corpus, list[Origin] | None]":
    """The corpus that a run was trained on: its tokens in the cache, and its documents' files where they still are."""
    from minigpt.data.corpus import Corpus
    from minigpt.data.sources import scan
    from minigpt.evaluation.memorization.documents import training_documents

    record, directory = checkpoint.training or {}, checkpoint.directory
    known = record.get("corpus")
    if not known:
        raise ConfigError(f"{directory} does not say what it was trained on; give that text with --corpus")
    names, reading = ", ".join(record["sources"]), record["reading"]
    options = {key: reading[key] for key in ("text_key", "encoding_errors")}
    place = known.get("path", "the cache")  # which early runs did not record
    try:
        found = None if "-" in record["sources"] else scan(record["sources"], **options)
    except DataError:
        found = None
    try:
        corpus = Corpus.load(place)
        if corpus.fingerprint != known["fingerprint"]:
            raise DataError(f"{place} holds another corpus")
    except DataError as error:
        rebuilt = found and Corpus.build(
            found, checkpoint.tokenizer, validation_fraction=reading["validation_fraction"]
        )
        if not rebuilt or rebuilt.fingerprint != known["fingerprint"]:
            raise ConfigError(
                f"the text that {directory} was trained on is no longer in {place}, and {names} "
                f"{'is another by now' if rebuilt else 'cannot be read'}; give it with --corpus"
            ) from error
        corpus = rebuilt
    if record.get("from"):
        out.print(
            f"compared with {names} alone, not with what {record['from']} had learnt from", markup=False, soft_wrap=True
        )
    if found is None:
        out.print(
            f"{names} cannot be read again: places are those of the text as it was trained on",
            markup=False,
            soft_wrap=True,
        )
        return corpus, None
    if found.content_hash != corpus.source_hash:
        out.print(
            f"{names} has changed since: places are those of the text as it was trained on",
            markup=False,
            soft_wrap=True,
        )
        return corpus, None
    return corpus, training_documents(found, corpus.validation_fraction)


def _superscript(number: int) -> str:
    return str(number).translate(_SUPERSCRIPTS)
