"""Which room of the package may import which, held true by reading every import in the source."""

import ast
import functools
import re
from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path

from scripts import ROOT, load_script

from minigpt import edges

# The spine from the ground up: a room imports only rooms above its own row, and of those only the ones it needs.
SPINE: Mapping[str, set[str]] = {
    room: set(allowed.split())
    for room, allowed in {
        "errors": "",
        "edges": "errors",
        "shell": "",
        "optional_packages": "errors shell",
        "seeds": "",
        "units": "",
        "bounded_reading": "",
        "settings": "errors",
        "config": "edges errors settings",
        "cgroups": "",
        "device": "errors config cgroups",
        "cores": "cgroups",
        "threads": "edges cores",
        "model": "edges errors config device",
        "tokenizer": "edges errors seeds bounded_reading config",
        "run_options": "errors settings config tokenizer",
        "data": "edges errors units optional_packages seeds bounded_reading cores config device tokenizer",
        "storage": "edges errors shell bounded_reading settings config run_options device model tokenizer data",
        "pretrained": "edges errors optional_packages bounded_reading config device model tokenizer storage",
        "generation": "edges errors settings seeds config device threads model tokenizer",
        "evaluation": (
            "errors optional_packages units bounded_reading config device threads model tokenizer data storage"
        ),
        "training": (
            "edges errors units seeds cores config device threads model tokenizer data storage generation evaluation"
        ),
        "runs": (
            "minigpt edges errors shell optional_packages units settings config run_options device threads model "
            "tokenizer data storage pretrained generation evaluation training"
        ),
        "cli": (
            "edges errors shell optional_packages units bounded_reading settings cores config run_options device "
            "threads model tokenizer data storage pretrained generation evaluation training runs"
        ),
        "__main__": "cli",
    }.items()
}
# An edge may import every room of the spine, and the edges that it needs. Beside them it may import these inside a
# function, where it asks first whether they are installed.
IF_INSTALLED: Mapping[str, set[str]] = {
    "autoplan": {"native"},
    "cuda": {"slots"},
    "large_corpora": {"importers"},
    "lora": {"importers"},
    "native": {"slots"},
    "tricks": {"native"},
}
EDGES: Mapping[str, set[str]] = {edge.name: set(edge.needs) for edge in edges.EDGES}
STDLIB_ONLY = {
    "minigpt",
    "minigpt.errors",
    "minigpt.shell",
    "minigpt.optional_packages",
    "minigpt.bounded_reading",
    "minigpt.settings",
    "minigpt.cores",
    "minigpt.config",
    "minigpt.run_options",
}
AT_THE_TERMINAL = (
    "minigpt.corpus_report.command", "minigpt.corpus_report.drawing", "minigpt.distributed.joined_world",
    "minigpt.distributed.launch", "minigpt.exporters.command", "minigpt.inspection.command",
    "minigpt.inspection.explained_output", "minigpt.inspection.token_colors", "minigpt.inspection.token_table",
    "minigpt.interactive.chat", "minigpt.interactive.play", "minigpt.interactive.session", "minigpt.lora.command",
    "minigpt.memorization.annotations", "minigpt.memorization.command", "minigpt.memorization.drawing",
    "minigpt.removal.command", "minigpt.reports.command", "minigpt.server.command", "minigpt.terminal.panel",
    "minigpt.terminal.wrapping",
)  # fmt: skip
LARGEST_SPINE, LARGEST_PACKAGE, LARGEST_TRAINING = 20_800, 51_500, 3_080  # lines of Python
TERMINAL = {"typer", "click", "rich"}
HEAVY = {"torch", "numpy", "tiktoken", "tokenizers", "safetensors", "huggingface_hub", "transformers", "matplotlib"}


def read_sources() -> dict[str, str]:
    """Every module of the package by its dotted name, a package by its own (`minigpt.model`)."""
    found = {}
    for path in sorted((ROOT / "minigpt").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


SOURCES = read_sources()


@functools.cache
def imports_of(name: str) -> list[str]:
    """The modules that a module imports, inside functions and under TYPE_CHECKING too."""
    return imports_in(SOURCES[name])


def imports_in(source: str) -> list[str]:
    """The modules that a source imports.

    `from minigpt import config` counts as `minigpt.config`, and a name that is no module counts as its module.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "a relative import"
            full = [f"{node.module}.{alias.name}" for alias in node.names if alias.name != "__version__"]
            found += [each if each in SOURCES else node.module for each in full]
    return found


@functools.cache
def top_level_imports(name: str) -> list[str]:
    """The modules that a module imports when it is imported."""
    nodes = [node for node in ast.parse(SOURCES[name]).body if isinstance(node, ast.ImportFrom)]
    return [f"{node.module}.{alias.name}" for node in nodes for alias in node.names] + [
        str(node.module) for node in nodes
    ]


def room_of(name: str) -> str:
    """`minigpt.model.gpt` is in `model`, `minigpt.config` is `config`; the front door is `minigpt`."""
    return name.split(".")[1] if "." in name else name


def outside_imports(names: set[str], forbidden: set[str]) -> list[str]:
    """Where modules of `names` import one of the `forbidden` distributions."""
    return [f"{name} imports {to}" for name in names for to in imports_of(name) if to.split(".")[0] in forbidden]


def terminal_calls(source: str) -> list[str]:
    """The calls that belong to a program rather than a library: print, exit and their kin."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=("print" | "input" | "exit" | "quit" | "breakpoint") as called)):
                found.append(called)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=("sys" | "os") as module), attr=("exit" | "_exit") as called)
            ):
                found.append(f"{module}.{called}")
            case ast.ImportFrom(module="sys", names=names) if any(alias.name == "exit" for alias in names):
                found.append("sys.exit")
            case ast.Raise(exc=ast.Name(id="SystemExit") | ast.Call(func=ast.Name(id="SystemExit"))):
                found.append("SystemExit")
    return found


def wrong_imports(rooms: Mapping[str, set[str]]) -> list[str]:
    """The imports of modules in these rooms that no row of the tables allows."""
    return [
        f"{name} imports {to}"
        for name in SOURCES
        if (room := room_of(name)) in rooms
        for to in imports_of(name)
        if to.split(".")[0] == "minigpt" and room_of(to) not in {room} | rooms[room]
    ]


def test_every_module_stands_in_a_room_of_the_tables() -> None:
    assert {room_of(name) for name in SOURCES} - {"minigpt"} == SPINE.keys() | EDGES.keys()
    assert [edge.package for edge in edges.EDGES] == [f"minigpt.{edge.name}" for edge in edges.EDGES]


def test_the_spine_imports_no_edge_and_its_imports_point_down_the_table() -> None:
    """The front door's lazy names lead into every room, by design."""
    assert wrong_imports(SPINE) == []


def test_an_edge_imports_the_spine_and_the_edges_that_it_needs() -> None:
    allowed = {
        room: needs | IF_INSTALLED.get(room, set()) | SPINE.keys() | {"minigpt"} for room, needs in EDGES.items()
    }
    assert wrong_imports(allowed) == []


def test_an_edge_imports_what_may_be_missing_inside_a_function_or_in_a_module_that_is_imported_so() -> None:
    wrong = []
    asked_for = [item for edge in edges.EDGES for item in (*edge.provides.items(), *edge.commands.items())]
    always_imported = {
        target.partition(":")[0] for seam, target in asked_for if seam not in EDGES
    }  # an edge's own seam
    always_imported |= {to for name in SOURCES for to in top_level_imports(name)}
    for name in SOURCES:
        allowed = IF_INSTALLED.get(room_of(name), set())
        if name in always_imported and any(room_of(to) in allowed for to in top_level_imports(name)):
            wrong.append(name)
    assert wrong == []


def test_a_test_of_the_spine_imports_no_edge() -> None:
    """It is in the folder of a room, or is test_ROOM.py. It patches no edge either, and what it shares with tests of
    edges loads one only where it is installed."""
    tests = ROOT / "tests"
    files = {path for room in SPINE for path in (*(tests / room).rglob("*.py"), *tests.glob(f"test_{room}.py"))}
    left, sources = [*files, tests / "conftest.py"], dict[Path, str]()
    while left:
        path = left.pop()
        sources[path] = path.read_text(encoding="utf-8")
        shared = {tests / "shared" / f"{name.split('.')[0]}.py" for name in imports_in(sources[path])}
        left += [each for each in shared if each.exists() and each not in sources]
    named = {path: imports_in(source) for path, source in sources.items()}
    for path in files:
        named[path] += re.findall(r'"(minigpt\.[\w.]+)"', sources[path])
    assert [
        f"{path.relative_to(ROOT)} names {name}"
        for path, names in named.items()
        for name in names
        if name.startswith("minigpt.") and room_of(name) in EDGES
    ] == []


def test_edges_do_not_need_one_another_in_a_circle() -> None:
    TopologicalSorter(EDGES).prepare()


def test_what_the_edges_provide_is_there() -> None:
    """Something asks for it at a seam, and what is named exists."""
    sources = "\n".join(SOURCES.values())
    for edge in edges.EDGES:
        for seam, target in edge.provides.items():
            assert f'provided("{seam}")' in sources, f"{edge.name} provides {seam}, which nothing asks for"
            assert edges.load(target) is not None
        for target in edge.commands.values():
            assert callable(edges.load(target))


def test_no_modules_import_one_another_in_a_circle() -> None:
    graph = {name: {to for to in imports_of(name) if to in SOURCES} - {name} for name in SOURCES if name != "minigpt"}
    TopologicalSorter(graph).prepare()


def test_settings_and_errors_need_the_standard_library_only() -> None:
    assert outside_imports(STDLIB_ONLY, HEAVY | TERMINAL) == []


def test_only_the_command_line_draws_on_the_terminal() -> None:
    """It is in `cli/` and in the modules of edges that are named for it."""
    library = {name for name in SOURCES if room_of(name) != "cli" and name not in AT_THE_TERMINAL}
    assert outside_imports(library, TERMINAL) == []
    assert {name: calls for name in library if (calls := terminal_calls(SOURCES[name]))} == {}


def test_the_picture_of_the_rooms_is_up_to_date() -> None:
    rooms = load_script("docs/rooms.py")
    assert rooms.PICTURE.read_text(encoding="utf-8") == rooms.picture(), "run: python docs/rooms.py"


def test_every_error_is_made_where_it_is_raised() -> None:
    """One that is raised again keeps the frames of every time, and what is in them."""
    assert [name for name, source in SOURCES.items() if re.search(r"raise _?[A-Z][A-Z_]+\b(?!\()", source)] == []


def test_the_sizes_stay_within_their_bounds() -> None:
    """A larger part of the program asks for a decision: what can go, or a new bound here."""
    rooms = load_script("docs/rooms.py")
    sizes = rooms.sizes()
    assert sum(lines for room, lines in sizes.items() if room in SPINE) <= LARGEST_SPINE
    assert sum(sizes.values()) <= LARGEST_PACKAGE
    assert sizes["training"] <= LARGEST_TRAINING
    assert rooms.long_functions() == []
