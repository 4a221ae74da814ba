"""Writes the picture of the package's rooms from its imports and docstrings; or prints their sizes.

python docs/rooms.py
python docs/rooms.py --sizes
"""

import ast
import html
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from minigpt.edges import EDGES

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "rooms.svg"

WIDTH, ROW, GAP, MARGIN = 1180, 80, 12, 24  # pixels
LINE, LETTER = 15, 6.5  # of the small text: line height and mean letter width, pixels
SENTENCES = {edge.name: edge.sentence for edge in EDGES}
EDGE_ROOMS = tuple(SENTENCES)
PER_ROW = 6  # edges, which stand above all floors
LONGEST_FUNCTION, MOST_PARAMETERS = 80, 7  # lines; parameters of a constructor

COLORS = ("#e8eef7", "#e6f3ec", "#fdf3e1", "#f3e9f7", "#e5f4f6", "#fbe9e7")
EDGE_COLOR = "#f4f4f4"


def rooms() -> dict[str, list[Path]]:
    """The files of each room: a folder of the package, or a file beside the folders."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "minigpt").rglob("*.py")):
        parts = path.relative_to(ROOT / "minigpt").parts
        if not parts[0].startswith("__"):
            found.setdefault(parts[0].removesuffix(".py"), []).append(path)
    return found


def imported_rooms(path: Path) -> Iterator[str]:
    """The rooms that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("minigpt."):
            yield str(node.module).split(".")[1]


def floors() -> list[list[str]]:
    """The rooms of the spine by floor, the ground floor first: each is one above the highest room that it imports."""
    files = {room: paths for room, paths in rooms().items() if room not in EDGE_ROOMS}
    imports = {
        room: {other for path in paths for other in imported_rooms(path)} & files.keys() - {room}
        for room, paths in files.items()
    }
    floor: dict[str, int] = {}

    def floor_of(room: str) -> int:
        if room not in floor:
            floor[room] = 1 + max((floor_of(other) for other in imports[room]), default=-1)
        return floor[room]

    highest = max(map(floor_of, files))
    return [[room for room in files if floor[room] == level] for level in range(highest + 1)]


def lines_of(room: str) -> int:
    """The lines of Python in a room."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in rooms()[room])


def long_functions() -> list[str]:
    """The functions of more than LONGEST_FUNCTION lines, and the constructors with too many parameters."""
    found = []
    for path in sorted((ROOT / "minigpt").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            place = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
            length = node.end_lineno - node.lineno + 1  # type: ignore[operator]
            if length > LONGEST_FUNCTION:
                found.append(f"{place}: {length} lines")
            parameters = len(node.args.args) + len(node.args.kwonlyargs) - 1
            is_lesson = path.parent.name == "foundations"  # with the hyperparameters of the paper
            if node.name == "__init__" and parameters > MOST_PARAMETERS and not is_lesson:
                found.append(f"{place}: {parameters} parameters")
    return found


def sizes() -> dict[str, int]:
    """The lines of Python of the spine's rooms, the largest first, then of the edges."""
    found = {room: lines_of(room) for room in rooms()}
    ordered = sorted(found, key=lambda room: (room in EDGE_ROOMS, -found[room]))
    return {room: found[room] for room in ordered}


def print_sizes() -> None:
    found = sizes()
    for title, is_edge in (("the spine", False), ("the edges", True)):
        part = {room: lines for room, lines in found.items() if (room in EDGE_ROOMS) == is_edge}
        print(f"{sum(part.values()):>7,}  {title}")
        for room, lines in part.items():
            print(f"{lines:>7,}    {room}")
    print(f"{sum(found.values()):>7,}  together")
    print("\n".join(long_functions()))


def sentence(path: Path) -> str:
    """What a file or a folder provides: the first paragraph of its docstring."""
    path = path / "__init__.py" if path.is_dir() else path
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def place_of(room: str) -> Path:
    """The folder or file of a room."""
    folder = ROOT / "minigpt" / room
    return folder if folder.is_dir() else folder.with_suffix(".py")


def picture() -> str:
    """The SVG."""
    edges = [list(EDGE_ROOMS[start : start + PER_ROW]) for start in range(0, len(EDGE_ROOMS), PER_ROW)]
    levels = [*floors(), *reversed(edges)]
    height = 2 * MARGIN + 40 + len(levels) * (ROW + GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="{MARGIN + 14}" font-size="16" fill="#333">minigpt/: the edges, and below them the '
        "spine, where every room imports only rooms on lower floors</text>",
    ]
    for row, names in enumerate(reversed(levels)):
        top = MARGIN + 36 + row * (ROW + GAP)
        room_width = (WIDTH - 2 * MARGIN - (len(names) - 1) * GAP) / len(names)
        for column, room in enumerate(names):
            left = MARGIN + column * (room_width + GAP)
            color = EDGE_COLOR if room in EDGE_ROOMS else COLORS[row % len(COLORS)]
            place = place_of(room)
            name = f"{place.name}/" if place.is_dir() else place.name
            lines.append(
                f'<rect x="{left:.1f}" y="{top}" width="{room_width:.1f}" height="{ROW}" rx="8" fill="{color}" '
                'stroke="#8a94a6"/>'
            )
            lines.append(
                f'<text x="{left + 12:.1f}" y="{top + 24}" font-size="15" font-weight="bold" fill="#1b2a41">'
                f"{name}</text>"
            )
            wrapped = textwrap.wrap(
                SENTENCES.get(room) or sentence(place), int((room_width - 24) / LETTER), max_lines=2, placeholder=" …"
            )
            for number, text in enumerate(wrapped):
                lines.append(
                    f'<text x="{left + 12:.1f}" y="{top + 43 + number * LINE}" font-size="12" fill="#333">'
                    f"{html.escape(text)}</text>"
                )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    if sys.argv[1:] == ["--sizes"]:
        print_sizes()
    else:
        PICTURE.write_text(picture(), encoding="utf-8")
