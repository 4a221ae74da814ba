"""The text of subtitles in SRT and WebVTT: what is said, without numbers and times."""

import html
import re
from collections.abc import Iterable, Iterator

from minigpt.documents.limited_reading import RefusedError

_TAGS = re.compile(r"</?[a-zA-Z][^<>\n]{0,100}>|\{\\[^{}\n]{0,100}\}")
_VTT_TAGS = re.compile(r"<rt>[^<>\n]{0,100}(?:</rt>)?|</?[a-zA-Z0-9.][^<>\n]{0,100}>")
_WEBVTT = re.compile(r"\s*WEBVTT\b")
_VTT_BLOCKS = re.compile(r"(?:NOTE|STYLE|REGION)(?:\s|$)")
# Times, which some programs write on the line of the number, or below zero. The second has an arrow that is damaged,
# such as ->.
_TIMES = re.compile(
    r"(?:#?(?P<number>[0-9]{1,9})\s+)?"
    r"(?:-?(?:\d+:)?\d+:\d+(?:[.,:]\d*)?\s*-->\s*-?(?:\d+:)?\d+:\d+|(?:-?\d+:\d\d:\d\d[.,]\d+[^\w:]{0,8}){2})"
)
_CLOCK = re.compile(r"\d+:\d+\s*-->\s*\d+:\d+\s+(?!\w+:)\w")  # a line that is said
_NUMBER = re.compile(r"#?([0-9]{1,9})")
_DAMAGED_TIME = re.compile(r"(?:#?\d+\s+)?-?\d+:.*-->")
_WORDS_APPEAR = re.compile(r"<\d\d:\d\d:\d\d\.\d{3}><c>")  # each line is there again while the next one appears
_LONGEST_TIME = 200  # characters, with where the subtitle is shown


def srt_text(text: str) -> str:
    """The subtitles, a line each; the lines of one subtitle are joined unless two speakers have a line each.

    A text that is WebVTT is read as that.
    Raises: RefusedError for a text without subtitles, or with a time that is damaged.
    """
    if _WEBVTT.match(text):
        return vtt_text(text)
    return _text([_TAGS.sub("", line) for line in subtitle] for subtitle in _subtitles(text, vtt=False))


def vtt_text(text: str) -> str:
    """The same for WebVTT; lines that are repeated while their words appear are there once."""
    subtitles = [[html.unescape(_VTT_TAGS.sub("", line)) for line in each] for each in _subtitles(text, vtt=True)]
    if _WORDS_APPEAR.search(text):
        last = ""
        for lines in subtitles:
            shown = [line.strip() for line in lines if line.strip()]
            lines[:] = [line for before, line in zip([last, *shown], shown, strict=False) if line != before]
            last = shown[-1] if shown else last
    return _text(subtitles)


def _text(subtitles: Iterable[list[str]]) -> str:
    lines = []
    for subtitle in subtitles:
        spoken = [line.strip() for line in subtitle if line.strip()]
        starts = [0, *(i for i, line in enumerate(spoken) if i and line.startswith(("-", "–", "—")))]
        lines += [" ".join(spoken[a:b]) for a, b in zip(starts, [*starts[1:], len(spoken)], strict=True)]
    return "\n".join(filter(None, lines))


def _subtitles(text: str, vtt: bool) -> Iterator[list[str]]:
    """The lines of each subtitle: those after its time, or after its number where it has no time."""
    lines: list[str] = []
    number, times, after_empty, named, skipped = 0, 0, True, False, vtt
    text = text.replace("\r\r\n", "\n").replace("\r\n", "\n").replace("\r", "\n")
    for place, line in enumerate(map(str.strip, text.split("\n")), 1):
        if not line:
            after_empty, skipped = True, False
            continue
        said = not after_empty and _CLOCK.match(line) is not None
        if not said and len(line) <= _LONGEST_TIME and (found := _TIMES.match(line)):
            name = found["number"] or ""
            if not name and lines and not after_empty and (lines[-1].removeprefix("#").isdecimal() or (vtt and named)):
                name = lines.pop()
            if is_number := _NUMBER.fullmatch(name):
                number = int(is_number[1])
            yield lines
            lines, times, skipped = [], times + 1, False
        elif not (skipped or said) and _DAMAGED_TIME.match(line[:_LONGEST_TIME]):
            raise RefusedError(
                f"has a damaged time in line {place:,}, {line[:40]!r}; write it as 00:00:01,000 --> 00:00:02,000"
            )
        elif after_empty and (is_number := _NUMBER.fullmatch(line)) and int(is_number[1]) == number + 1:
            yield lines
            lines, number = [], number + 1
        else:
            skipped = skipped or (vtt and after_empty and _VTT_BLOCKS.match(line) is not None)
            lines += [] if skipped else [line]
        named, after_empty = after_empty, False
    yield lines
    if not times and text.strip():
        raise RefusedError("has no subtitles: no line is a time such as 00:00:01,000 --> 00:00:02,000")
