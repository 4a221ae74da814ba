"""Records commands in a terminal and draws the recording as an animated SVG that needs no script.

    pip install pyte
    python docs/record_terminal.py docs/images/training.svg "minigpt train demo/sherlock_holmes.txt --minutes 2" \
        'minigpt generate "Sherlock Holmes"'

`--cast FILE` keeps the recording in asciinema's format (asciicast v2); with an existing file and no command, the
picture is drawn from it again. The commands run one after the other in a pseudo-terminal of the given size. The screen
is sampled at equal intervals, equal screens become one frame, and CSS shows the frames one after the other in a loop.
The loop begins with the last screen, so that a viewer without animation shows that one.
"""

import argparse
import codecs
import fcntl
import json
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from html import escape
from itertools import groupby
from pathlib import Path

import pyte

Event = tuple[float, str]  # seconds since the start, what was written to the terminal
Style = tuple[str, bool]  # color, bold
Row = tuple[tuple[int, str, Style], ...]  # column, text, style of each run of equal cells
Frame = tuple[float, tuple[Row, ...]]  # seconds on the screen, rows

CELL_WIDTH, LINE_HEIGHT, FONT_SIZE, MARGIN, TITLE_HEIGHT = 8.0, 17, 13.3, 12, 26
COLORS = {
    "default": "#24292f",
    "black": "#24292f",
    "red": "#cf222e",
    "green": "#1a7f37",
    "brown": "#9a6700",  # pyte's name for yellow
    "blue": "#0969da",
    "magenta": "#8250df",
    "cyan": "#1b7c83",
    "white": "#6e7781",
    "brightblack": "#6e7781",
}


def record(commands: list[str], columns: int, rows: int) -> list[Event]:
    """Runs each command in a pseudo-terminal, after a line with a prompt and the command."""
    events: list[Event] = []
    began = time.monotonic()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
    environment.pop("NO_COLOR", None)
    for command in commands:
        events.append((time.monotonic() - began, f"\x1b[1m$ {command}\x1b[0m\r\n"))
        terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        process = subprocess.Popen(
            shlex.split(command), stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
        )
        os.close(inside)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            ready, _, _ = select.select([terminal], [], [], 0.1)
            if ready:
                try:
                    data = os.read(terminal, 65536)
                except OSError:  # Linux: the last process has closed the terminal
                    break
                events.append((time.monotonic() - began, decoder.decode(data)))
            elif process.poll() is not None:
                break
        os.close(terminal)
        if process.wait():
            sys.exit(f"{command}: exit code {process.returncode}")
    return events


def write_cast(path: Path, events: list[Event], columns: int, rows: int) -> None:
    """Writes the recording as asciicast v2."""
    lines = [{"version": 2, "width": columns, "height": rows}, *([round(at, 3), "o", text] for at, text in events)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read_cast(path: Path) -> tuple[list[Event], int, int]:
    """Reads an asciicast v2: its events, columns and rows."""
    header, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [(at, text) for at, kind, text in lines if kind == "o"], header["width"], header["height"]


def dim_as_gray(text: str) -> str:
    """Replaces the style "dim", which pyte ignores, by bright black."""

    def replace(match: re.Match[str]) -> str:
        parameters = match[1].split(";")
        plain = "38" not in parameters and "48" not in parameters
        return f"\x1b[{';'.join('90' if plain and value == '2' else value for value in parameters)}m"

    return re.sub(r"\x1b\[([\d;]*)m", replace, text)


def rows_of(screen: pyte.Screen) -> tuple[Row, ...]:
    """The rows of a screen, each as runs of cells of one style; trailing spaces are dropped."""
    found = []
    for y in range(screen.lines):
        cells = [screen.buffer[y][x] for x in range(screen.columns)]
        runs, column = [], 0
        for style, group in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
            text = "".join(cell.data for cell in group)
            if text.strip():
                start = len(text) - len(text.lstrip(" "))
                runs.append((column + start, text.strip(" "), style))
            column += len(text)
        found.append(tuple(runs))
    return tuple(found)


def frames_of(events: list[Event], columns: int, rows: int, count: int, seconds: float, hold: float) -> list[Frame]:
    """The different screens among `count` samples, each with its seconds; before them the last one, for `hold`."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.Stream(screen)
    end = events[-1][0]
    position = 0
    frames: list[Frame] = []
    for sample in range(1, count + 1):
        while position < len(events) and events[position][0] <= end * sample / count:
            stream.feed(dim_as_gray(events[position][1]))
            position += 1
        shown = rows_of(screen)
        if frames and frames[-1][1] == shown:
            frames[-1] = (frames[-1][0] + seconds / count, shown)
        else:
            frames.append((seconds / count, shown))
    return [(hold, frames[-1][1]), *frames]


def draw(frames: list[Frame], columns: int, rows: int, title: str) -> str:
    """The SVG: every different row once, every frame a column of references, one animation over the frames."""
    width, height = 2 * MARGIN + columns * CELL_WIDTH, TITLE_HEIGHT + 2 * MARGIN + rows * LINE_HEIGHT
    ids: dict[Row, str] = {}
    for _, shown in frames:
        for row in shown:
            if row:
                ids.setdefault(row, f"r{len(ids)}")
    styles = sorted({style for row in ids for _, _, style in row})
    classes = {style: f"s{number}" for number, style in enumerate(styles)}
    whole = sum(duration for duration, _ in frames)
    keyframes, passed = [], 0.0
    for number, (duration, _) in enumerate(frames):
        keyframes.append(f"{100 * passed / whole:.3f}%{{transform:translateX({-number * width:g}px)}}")
        passed += duration
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height}" '
        f'viewBox="0 0 {width:g} {height}" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'
        f'\'DejaVu Sans Mono\',monospace" font-size="{FONT_SIZE}">',
        f"<title>{escape(title)}</title><style>text{{white-space:pre}}",
        *(
            f".{name}{{fill:{COLORS.get(color, '#' + color)}{';font-weight:bold' if bold else ''}}}"
            for (color, bold), name in classes.items()
        ),
        f"#film{{animation:film {whole:.1f}s step-end infinite}}",
        "@media(prefers-reduced-motion:reduce){#film{animation:none}}",
        f"@keyframes film{{{''.join(keyframes)}}}</style>",
        f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1}" rx="8" fill="#fff" stroke="#d0d7de"/>',
        f'<path d="M0 {TITLE_HEIGHT}.5H{width:g}" stroke="#d0d7de"/>',
        f'<text x="{width / 2:g}" y="18" text-anchor="middle" fill="#57606a" font-size="12">{escape(title)}</text>',
        "<defs>",
    ]
    for row, name in ids.items():
        parts = (
            f'<text class="{classes[style]}" x="{column * CELL_WIDTH:g}" textLength="{len(text) * CELL_WIDTH:g}" '
            f'lengthAdjust="spacingAndGlyphs">{escape(text, quote=False)}</text>'
            for column, text, style in row
        )
        lines.append(f'<g id="{name}">{"".join(parts)}</g>')
    lines.append(
        f'</defs><svg x="0" y="{TITLE_HEIGHT}" width="{width:g}" height="{height - TITLE_HEIGHT}"><g id="film">'
    )
    for number, (_, shown) in enumerate(frames):
        uses = (
            f'<use href="#{ids[row]}" y="{MARGIN + (y + 0.75) * LINE_HEIGHT:g}"/>' for y, row in enumerate(shown) if row
        )
        lines.append(f'<g transform="translate({number * width + MARGIN:g})">{"".join(uses)}</g>')
    lines.append("</g></svg></svg>\n")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="the SVG to write")
    parser.add_argument("commands", nargs="*", help="the commands to run; none: draw --cast again")
    parser.add_argument("--cast", type=Path, help="write the recording to this file, or draw from it")
    parser.add_argument("--columns", type=int, default=100, help="width of the terminal [100]")
    parser.add_argument("--rows", type=int, default=32, help="height of the terminal [32]")
    parser.add_argument("--frames", type=int, default=80, help="samples of the screen [80]")
    parser.add_argument("--seconds", type=float, default=16.0, help="length of the animation [16]")
    parser.add_argument("--hold", type=float, default=5.0, help="seconds that the last frame stays [5]")
    given = parser.parse_args()
    columns, rows = given.columns, given.rows
    if given.commands:
        events = record(given.commands, columns, rows)
        if given.cast:
            write_cast(given.cast, events, columns, rows)
    elif given.cast:
        events, columns, rows = read_cast(given.cast)
    else:
        parser.error("give commands to record, or --cast FILE to draw")
    frames = frames_of(events, columns, rows, given.frames, given.seconds, given.hold)
    title = f"a real run, played {events[-1][0] / given.seconds:.0f} times faster"
    given.output.write_text(draw(frames, columns, rows, title), encoding="utf-8")
    print(f"{given.output}: {given.output.stat().st_size:,} bytes, {len(frames)} frames")


if __name__ == "__main__":
    main()
