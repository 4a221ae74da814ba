"""Draws the passages that a text copies from the training text: highlighted in it, and listed below it."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from minigpt.memorization.words import Extent
from minigpt.tokenizer.display import visible
from minigpt.units import count

if TYPE_CHECKING:
    from minigpt.memorization.index import CopiedRun, Memorization

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_LAST_SAMPLES = 3  # that the summary of a run covers
_MOST_QUOTED = 60  # characters of a run that are shown with its location


def highlighted(text: str, measured: "Memorization") -> Text:
    """The text with its long copied runs in numbered ⟦ ⟧, underlined if the terminal can."""
    line, done = Text(), 0
    for number, (start, end) in enumerate(measured.spans, 1):
        line.append(visible(text[done:start], is_text=True))
        line.append(f"⟦{visible(text[start:end], is_text=True)}⟧{_superscript(number)}", style="underline yellow")
        done = end
    return line.append(visible(text[done:], is_text=True))


def summary_line(measured: "Memorization") -> str:
    longest = measured.longest
    if longest is None:
        return f"copied from the training text: none of {measured.extent}"
    characters = "" if longest.extent.characters else f" ({count(longest.end - longest.start, 'character')})"
    return (
        f"copied from the training text: {measured.share:.0%} of {measured.extent}, in runs of "
        f"{measured.extent.minimum(measured.min_words)} or more; longest run {longest.extent}{characters}"
    )


def run_line(run: "CopiedRun", measured: "Memorization", text: str, location: str) -> str:
    """A copied run in one line: the number of its highlighted span, its size, and the location of the original."""
    quoted = " ".join(text[run.start : run.end].split())
    quoted = quoted if len(quoted) <= _MOST_QUOTED else quoted[: _MOST_QUOTED - 1] + "…"
    first = "" if run.occurrences == 1 else f" (first of {run.occurrences:,} occurrences)"
    return f"{_span_number(run, measured)}{run.extent} “{visible(quoted)}”: {location}{first}"


def _span_number(run: "CopiedRun", measured: "Memorization") -> str:
    for number, (start, end) in enumerate(measured.spans, 1):
        if start <= run.start and run.end <= end and measured.is_long(run):
            return f"{_superscript(number)} "
    return ""


def samples_text(log: Iterable[Mapping[str, Any]]) -> str | None:
    """The copied share of a run's last samples and their longest copied run; None if the log has no such figures."""
    names = ("copied_share", "longest_copied_words", "copied_at_least")
    last = [line for line in log if all(line.get(name) is not None for name in names)][-_LAST_SAMPLES:]
    if not last:
        return None
    share = sum(line["copied_share"] for line in last) / len(last)  # the samples have about the same length
    runs = [Extent(line["longest_copied_words"], line.get("longest_copied_unspaced") or 0) for line in last]
    minimum = sum(runs, Extent()).minimum(last[-1]["copied_at_least"])
    longest = max(runs, key=lambda run: run.length)
    samples = f"last {len(last)} samples" if len(last) > 1 else "last sample"
    return f"{share:.0%} of the {samples}, in runs of {minimum} or more; longest run {longest}"


def _superscript(number: int) -> str:
    return str(number).translate(_SUPERSCRIPTS)
