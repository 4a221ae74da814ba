"""The corpus report as text and tables."""

from collections.abc import Iterable, Iterator

from rich.console import RenderableType

from minigpt.cli.render.console import facts
from minigpt.cli.render.result_table import ResultTable
from minigpt.corpus_report.duplicates import DuplicateStats
from minigpt.corpus_report.issue_kinds import LICENSE
from minigpt.corpus_report.locations import Location
from minigpt.corpus_report.near_duplicates import MIN_SIMILARITY, SHINGLE, NearDuplicateStats
from minigpt.corpus_report.repeats import WINDOW
from minigpt.corpus_report.report import Passage, Report
from minigpt.corpus_report.units import MIN_LINE, MIN_PARAGRAPH
from minigpt.tokenizer.display import visible
from minigpt.units import count, shown_loss, size

_MOST_EXAMPLE = 100  # characters
_MOST_SHARES = 5  # scripts or languages
_MIN_REST = 0.02  # of the text, in no language that is shown
_MINIMUM = {"paragraphs": f" of {MIN_PARAGRAPH} characters or more", "lines": f" of {MIN_LINE} characters or more"}


def report_parts(report: Report) -> Iterator[RenderableType]:
    """The parts of the report in order, from a description of the text to the advice; strings are single lines."""
    name = visible(report.files[0]) if len(report.files) == 1 else f"{len(report.files):,} files"
    yield facts(name, _facts(report))
    yield ""
    yield from _issue_lines(report)
    yield ""
    yield "duplicates"
    for duplicates in report.duplicates:
        if duplicates.kind != "documents" or report.documents > 1:
            yield from _duplicate_lines(duplicates)
    yield from _near_duplicate_lines(report.near_duplicates, report.near_duplicate_passages)
    if report.not_measured:
        yield f"  {report.not_measured}"
    else:
        yield from _repeat_lines(report)
    if report.overlap.windows:
        yield ""
        yield from _leakage_lines(report)
    yield ""
    yield _tokenizer_table(report)
    yield ""
    yield _baseline_table(report) if report.baselines else "no baselines: no text is held out to measure them on"
    yield ""
    yield visible(verdict(report))


def verdict(report: Report) -> str:
    """What to fix first, in one line; file names are not escaped."""
    findings = report.findings()
    if not findings:
        return "nothing serious to fix"
    more = f" ({len(findings) - 1} more above)" if len(findings) > 1 else ""
    return f"fix first: {findings[0].what}; {findings[0].advice}{more}"


def _facts(report: Report) -> dict[str, str]:
    endings = ", ".join(f"{found:,} {name}" for name, found in report.line_endings.items() if found) or "none"
    scripts = ", ".join(
        f"{name} {f'{share:.1%}' if share >= 0.0005 else 'under 0.1%'}"
        for name, share in list(report.scripts.items())[:_MOST_SHARES]
    )
    shares = [f"{code} {share:.0%}" for code, share in list(report.languages.items())[:_MOST_SHARES]]
    if shares and (rest := 1 - sum(report.languages.values())) >= _MIN_REST:
        shares.append(f"not identified {rest:.0%}")
    languages, missing = ", ".join(shares), "not measured" if report.not_measured else "not identified"
    held_out = f"{size(report.validation_bytes)} ({report.held_out})" if report.validation_bytes else "nothing"
    rows = {
        "size": f"{size(report.text_bytes)} in {count(report.documents, 'document')}",
        "characters": f"{report.characters:,}, {report.distinct_characters:,} different",
        "lines": f"{report.lines:,}, the longest with {report.longest_line:,} characters; line endings: {endings}",
        "scripts": f"{scripts} of the letters" if scripts else "no letters",
        "languages": f"{languages} of the text, estimated (ISO 639 codes)" if languages else missing,
        "held_out": f"{held_out} for validation, the same as in training",
    }
    if report.skipped:
        names = ", ".join(map(visible, report.skipped[:3]))
        rows["skipped"] = f"{count(len(report.skipped), 'file')} that are not text: {names}"
    return rows


def _issue_lines(report: Report) -> Iterator[str]:
    if not report.issues:
        yield "issues: none in the characters and lines"
        return
    yield "issues"
    for issue in report.issues:
        locations = issue.locations if issue.kind == LICENSE else issue.locations[:1]
        where = "at" if issue.count == len(locations) else "first at"
        yield f"  {issue.kind}: {issue.count:,}, {where} {', '.join(visible(str(each)) for each in locations)}"
        yield f"    {visible(issue.example)}"
        yield f"    {issue.advice}"


def _duplicate_lines(duplicates: DuplicateStats) -> Iterator[str]:
    units = f"{count(duplicates.units, duplicates.kind.removesuffix('s'))}{_MINIMUM.get(duplicates.kind, '')}"
    about, estimated, least = "", "", ""
    if duplicates.sampled_fraction < 1:
        about, least = "about ", "at least "
        estimated = f", estimated from a sample ({duplicates.sampled_fraction:.1%} of them)"
    if not duplicates.duplicates:
        yield f"  none of {units} occurs twice{estimated}"
        return
    where = _at(duplicates.locations)
    yield (
        f"  {about}{duplicates.duplicates:,} of {units} repeat another{estimated}; "
        f"one occurs {least}{duplicates.occurrences:,} times{where}:"
    )
    yield f"    {_one_line(duplicates.example)}"


def _near_duplicate_lines(near: NearDuplicateStats, pair: tuple[Passage, ...]) -> Iterator[str]:
    sample = "" if near.sampled_fraction == 1 else f" (a sample: {near.sampled_fraction:.1%} of them)"
    units = f"{count(near.units, 'long ' + near.kind.removesuffix('s'))}{sample}"
    if not pair:
        yield f"  no near-duplicates among {units}"
        return
    yield (
        f"  {near.duplicates:,} near-duplicates among {units} "
        f"(at least {MIN_SIMILARITY:.0%} of their runs of {SHINGLE} words in common)"
    )
    yield f"    the two most similar have {near.similarity:.0%} in common; their first difference:"
    for passage in pair:
        yield f"    {_one_line(passage.text)}{_at(passage.locations)}"


def _repeat_lines(report: Report) -> Iterator[str]:
    is_sample = report.repeat_bytes < report.text_bytes
    sample = f", in a sample of {size(report.repeat_bytes)}" if is_sample else ""
    if report.repeat is None:
        yield f"  no passage of {WINDOW} bytes or more occurs twice{sample}"
        return
    yield f"  longest repeated passage: {report.repeat.length:,} bytes{sample}{_passage(report.repeat_passage)}"
    yield f"  {report.repeat.share:.2%} of all stretches of {WINDOW} bytes occur more than once"


def _leakage_lines(report: Report) -> Iterator[str]:
    overlap = report.overlap
    is_sample = report.validation_sample_bytes < report.validation_bytes
    yield "leakage from the training text into the held-out text"
    yield (
        f"  {overlap.share:.2%} of the {overlap.windows:,} stretches of {WINDOW} bytes in the held-out text"
        f"{' (a sample)' if is_sample else ''} also occur in the training text"
    )
    if overlap.length:
        yield f"  longest shared passage: {overlap.length:,} bytes{_passage(report.overlap_passage)}"


def _tokenizer_table(report: Report) -> ResultTable:
    title = "tokenizers, measured on the held-out text" if report.validation_bytes else "tokenizers"
    rows = [(entry.tokenizer, f"{entry.vocab_size:,}", f"{entry.bytes_per_token:.2f}") for entry in report.compressions]
    return ResultTable(title, ("", " vocabulary size", " bytes per token"), rows)


def _baseline_table(report: Report) -> ResultTable:
    title = "baselines, in bits per byte of the held-out text (lower is better)"
    rows = [
        (visible(each.label), shown_loss(each.bits_per_byte), read, each.meaning)
        for each in sorted(report.baselines, key=lambda baseline: -baseline.bits_per_byte)
        for read in (size(each.train_bytes) if each.train_bytes else "nothing",)
    ]
    return ResultTable(title, ("", " ", " trained on", "what it uses"), rows)


def _passage(passage: Passage | None) -> str:
    return "" if passage is None else f"{_at(passage.locations)}:\n    {_one_line(passage.text)}"


def _at(locations: Iterable[Location]) -> str:
    found = " and ".join(visible(str(location)) for location in locations)
    return f", at {found}" if found else ""


def _one_line(text: str) -> str:
    """The beginning of the text on one line, safe for a terminal."""
    shown = visible(" ".join(text.split()))
    return shown if len(shown) <= _MOST_EXAMPLE else f"{shown[: _MOST_EXAMPLE - 1]}…"
