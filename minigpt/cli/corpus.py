"""`minigpt corpus`: what is in a text, what is wrong with it, and what figures a model of it should beat."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.models import open_model
from minigpt.cli.options import CheckpointsOption, DeviceOption, JsonOption, names_of, settings_options
from minigpt.config import ReadingConfig

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from minigpt.corpus_report.locations import Place
    from minigpt.corpus_report.report import Passage, Progress, Report

_NEIGHBOUR = 4  # times the vocabulary that training would choose, to compare it with


@settings_options((ReadingConfig, names_of(ReadingConfig)))
def corpus(
    given: dict[str, Any],
    texts: Annotated[
        list[str], typer.Argument(help="text files, folders or globs, or - for standard input", metavar="TEXT...")
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", help="measure this model, which has not seen the text, beside the baselines"),
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Examine texts before you train on them: troubles, copies, leaks, tokens, and honest baselines.

    Nothing is changed. What is looked at in part only, in a large text, says so.

    Examples:

    - `minigpt corpus book.txt`

    - `minigpt corpus letters/ --model gpt2`

    - `minigpt corpus web.jsonl.gz --text-key content --json`
    """
    reading = ReadingConfig(**given)

    from minigpt.cli.render.console import console
    from minigpt.corpus_report.report import examine
    from minigpt.data.sources import scan

    out = console()
    other = None
    if model is not None:
        checkpoint = open_model(model, checkpoints, device)
        other = (model, checkpoint.model, checkpoint.tokenizer)
    with _stages(out) as progress:
        progress("looking through", 0, 1)
        found = scan(texts, text_key=reading.text_key, encoding_errors="replace")
        report = examine(
            found,
            encoding_errors=reading.encoding_errors,
            validation_fraction=reading.validation_fraction,
            tokenizers=_tokenizers(found.text_bytes),
            model=other,
            progress=progress,
        )
    if as_json:
        print(json.dumps(_record(report)))
        return
    result = console(stderr=False)
    for part in _shown(report):
        result.print(part, soft_wrap=isinstance(part, str), markup=False)


def _tokenizers(text_bytes: int) -> list[str]:
    """The tokenizers that are compared: those without a size, what training would choose, and a larger one."""
    from minigpt.planning.plan import plan_tokenizer
    from minigpt.tokenizer.tokenizer import requested_vocab_size

    size = requested_vocab_size(plan_tokenizer(text_bytes)) or (512 if text_bytes < 2**20 else 16_384)
    return ["bytes", "chars", f"bpe:{size}", f"bpe:{_NEIGHBOUR * size}", "gpt2"]


@contextmanager
def _stages(out: "Console") -> "Iterator[Progress]":
    """A bar that is told (what, done, total); it vanishes when done, and only a terminal has it."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    if not out.is_terminal:
        yield lambda *_: None
        return
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=out, transient=True
    ) as bar:
        task = bar.add_task("")
        yield lambda what, done, total: bar.update(task, description=f"{what} …", completed=done, total=total)


def _record(report: "Report") -> dict[str, Any]:
    """The report as JSON has it."""
    record = asdict(report)
    record["overlap"]["share"] = report.overlap.share
    for entry, baseline in zip(record["baselines"], report.baselines, strict=True):
        entry |= {"meaning": baseline.meaning, "label": baseline.label, "is_partial": baseline.is_partial}
    record["findings"] = [asdict(finding) for finding in report.findings()]
    record["verdict"] = _verdict(report)
    return record


def _shown(report: "Report") -> "Iterator[RenderableType]":
    """The report's parts, from what the text is to what to do first."""
    from minigpt.cli.render.console import facts
    from minigpt.corpus_report.issue_kinds import LICENCE
    from minigpt.tokenizer.display import visible

    name = visible(report.files[0]) if len(report.files) == 1 else f"{len(report.files):,} files"
    yield facts(name, _facts(report))
    yield ""
    if report.troubles:
        yield "troubles"
        for trouble in report.troubles:
            places = trouble.places if trouble.kind == LICENCE else trouble.places[:1]
            yield f"  {trouble.kind}: {trouble.count:,}{_places(places, ', at ', ', ')}"
            yield f"    {visible(trouble.example)}"
            yield f"    {trouble.advice}"
    else:
        yield "troubles: none in the characters and lines"
    yield ""
    yield from _copies(report)
    yield ""
    yield from _tables(report)
    yield ""
    yield visible(_verdict(report))


def _facts(report: "Report") -> dict[str, str]:
    from minigpt.cli.render.units import count, size
    from minigpt.tokenizer.display import visible

    ends = ", ".join(f"{found:,} {kind}" for kind, found in report.line_ends.items() if found) or "none"
    scripts = ", ".join(f"{name} {share:.1%}" for name, share in list(report.scripts.items())[:5])
    languages = ", ".join(f"{name} {share:.0%}" for name, share in list(report.languages.items())[:5])
    held_out = f"{size(report.validation_bytes)} ({report.held_out})" if report.validation_bytes else "nothing"
    rows = {
        "size": f"{size(report.text_bytes)} in {count(report.documents, 'document')}",
        "characters": f"{report.characters:,}, {report.different_characters:,} different",
        "lines": f"{report.lines:,}, the longest of {report.longest_line:,} characters; line ends: {ends}",
        "scripts": f"{scripts or 'no letters'} of the letters",
        "languages": f"{languages or 'none that is known here'}, by a guess from their commonest words",
        "held_out": f"{held_out}, as training would",
    }
    if report.skipped:
        names = ", ".join(map(visible, report.skipped[:3]))
        rows["skipped"] = f"{count(len(report.skipped), 'file')} that are not text: {names}"
    return rows


def _copies(report: "Report") -> Iterator[str]:
    from minigpt.corpus_report.duplicates import LEAST_LINE, LEAST_PARAGRAPH, SHINGLE, SIMILAR
    from minigpt.corpus_report.overlap import WINDOW
    from minigpt.corpus_report.report import search_key

    least = {"paragraphs": f" of {LEAST_PARAGRAPH} characters or more", "lines": f" of {LEAST_LINE} characters or more"}
    yield "copies"
    for copies in report.copies:
        if copies.kind == "documents" and report.documents == 1:
            continue
        what = f"{copies.units:,} {copies.kind}{least.get(copies.kind, '')}{_part(copies.looked_at)}"
        if not copies.copies:
            yield f"  none among {what}"
            continue
        yield f"  {copies.copies:,} among {what}; one stands {copies.times:,} times{_at(report, copies.example)}:"
        yield f"    {_one_line(search_key(copies.example))}"
    near = report.near
    what = f"{near.units:,} long {near.kind}{_part(near.looked_at)}"
    if report.near_passages:
        yield f"  {near.copies:,} near copies among {what} ({SIMILAR:.0%} of runs of {SHINGLE} words or more in common)"
        yield f"    the most alike are so by {near.similarity:.0%}, and first differ here:"
        for passage in report.near_passages:
            yield f"    {_one_line(passage.text)}{_places(passage.places, ', at ')}"
    else:
        yield f"  no near copies among {what}"
    part = "" if report.repeat_bytes >= report.text_bytes else f", in a sample of {report.repeat_bytes:,} bytes"
    if report.repeat:
        repeat = report.repeat
        yield f"  longest repeated passage: {repeat.length:,} bytes{part}{_where(report.repeat_passage)}"
        yield f"  {repeat.share:.2%} of all windows of {WINDOW} bytes stand more than once"
    else:
        yield f"  no passage of {WINDOW} bytes or more is repeated{part}"
    if report.overlap.windows:
        part = "" if report.validation_looked_at >= report.validation_bytes else " (a sample)"
        yield (
            f"  leaks: {report.overlap.share:.2%} of the {report.overlap.windows:,} windows of {WINDOW} bytes in the "
            f"held-out text{part} stand in the training text"
        )
        if report.overlap.length:
            yield f"  the longest such stretch: {report.overlap.length:,} bytes{_where(report.overlap_passage)}"


def _tables(report: "Report") -> "Iterator[RenderableType]":
    from rich.table import Table

    from minigpt.tokenizer.display import visible

    table = Table(title="tokenizers", title_justify="left", title_style="bold", box=None, header_style="dim")
    table.add_column("")
    for name in ("words", "bytes per token"):
        table.add_column(name, justify="right")
    for entry in report.compressions:
        table.add_row(entry.tokenizer, f"{entry.vocab_size:,}", f"{entry.bytes_per_token:.2f}")
    yield table
    yield ""
    if not report.baselines:
        yield "no baselines: nothing is held out to measure them on"
        return
    table = Table(title="baselines, bits per byte of held-out text", title_justify="left", title_style="bold", box=None,
                  header_style="dim")  # fmt: skip
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("learnt from", justify="right")
    table.add_column("what it knows")
    for baseline in sorted(report.baselines, key=lambda baseline: -baseline.bits_per_byte):
        table.add_row(
            visible(baseline.label),
            f"{baseline.bits_per_byte:.3f}",
            _size(baseline.train_bytes) if baseline.train_bytes else "nothing",
            baseline.meaning,
        )
    yield table


def _verdict(report: "Report") -> str:
    """What to do first; files have the names that they have."""
    findings = report.findings()
    if not findings:
        return "nothing found"
    first = f"fix first: {findings[0].what}; {findings[0].advice}"
    return first + (f" ({len(findings) - 1} more above)" if len(findings) > 1 else "")


def _size(n_bytes: int) -> str:
    from minigpt.cli.render.units import size

    return size(n_bytes)


def _part(share: float) -> str:
    return "" if share == 1 else f" (a sample: {share:.1%} of them)"


def _at(report: "Report", example: str) -> str:
    from minigpt.corpus_report.report import search_key

    places = report.copy_places.get(search_key(example), ())
    return _places(places, ", at ")


def _where(passage: "Passage | None") -> str:
    if passage is None:
        return ""
    return f"{_places(passage.places, ' at ')}:\n    {_one_line(passage.text)}"


def _places(places: "Iterable[Place]", before: str, between: str = " and ") -> str:
    from minigpt.tokenizer.display import visible

    shown = between.join(visible(str(place)) for place in places)
    return f"{before}{shown}" if shown else ""


def _one_line(text: str) -> str:
    """The text's beginning, on one line, with nothing in it that acts on a terminal."""
    from minigpt.tokenizer.display import visible

    shown = visible(" ".join(text.split()))
    return shown if len(shown) <= 100 else f"{shown[:99]}…"
