"""Which room of the package may import which, held true by reading every import in the source."""

import ast
import functools
import re
from collections.abc import Mapping
from graphlib import TopologicalSorter

from scripts import ROOT, load_script

# From the ground up: a room imports only rooms above its own row, and of those only the ones it needs.
MAY_IMPORT: Mapping[str, set[str]] = {
    room: set(allowed.split())
    for room, allowed in {
        "errors": "",
        "shell": "",
        "optional_packages": "errors shell",
        "seeds": "",
        "units": "",
        "bounded_reading": "",
        "settings": "errors",
        "config": "errors settings",
        "run_options": "errors settings config",
        "cgroups": "",
        "device": "errors config cgroups",
        "cores": "cgroups",
        "threads": "cgroups cores",
        "pages": "",
        "model": "errors config device",
        "native": "errors config device model",
        "foundations": "errors model",
        "tokenizer": "errors seeds bounded_reading config",
        "data": "errors optional_packages seeds bounded_reading cores config device tokenizer",
        "storage": "errors shell bounded_reading settings config run_options device model tokenizer data",
        "importers": "errors optional_packages bounded_reading config device model native tokenizer storage",
        "generation": "errors seeds config device threads model native tokenizer",
        "exporters": (
            "errors shell optional_packages pages config device model native tokenizer data storage importers "
            "generation"
        ),
        "evaluation": (
            "errors optional_packages units bounded_reading config device threads model tokenizer data storage "
            "importers"
        ),
        "inspection": "errors optional_packages pages config device model tokenizer data storage evaluation",
        "corpus_report": "errors optional_packages config model tokenizer data evaluation",
        "training": (
            "errors seeds cores config device threads model native tokenizer data storage generation evaluation "
            "inspection"
        ),
        "planning": "errors config run_options device model tokenizer data storage evaluation training",
        "reports": "errors optional_packages units pages config model tokenizer data storage evaluation inspection",
        # The server shows a model's inspection and its run's report, so it is above the rooms that make them.
        "server": "errors settings pages config model tokenizer data generation inspection reports",
        "jobs": (
            "minigpt errors shell optional_packages units config run_options device threads model native tokenizer "
            "data storage importers generation evaluation corpus_report training planning reports"
        ),
        "cli": (
            "errors shell optional_packages units bounded_reading settings cores config run_options device threads "
            "model tokenizer data storage importers exporters pages native generation server evaluation inspection "
            "corpus_report training planning reports jobs"
        ),
        "__main__": "cli",
    }.items()
}
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
    """The modules that a module imports, inside functions and under TYPE_CHECKING too.

    `from minigpt import config` counts as `minigpt.config`, and a name that is no module counts as its module.
    """
    found = []
    for node in ast.walk(ast.parse(SOURCES[name])):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{name} has a relative import"
            full = [f"{node.module}.{alias.name}" for alias in node.names if alias.name != "__version__"]
            found += [each if each in SOURCES else node.module for each in full]
    return found


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


def test_every_module_stands_in_a_room_of_the_table() -> None:
    assert {room_of(name) for name in SOURCES} - {"minigpt"} == set(MAY_IMPORT)


def test_imports_point_down_the_table() -> None:
    """The front door's lazy names lead into every room, by design."""
    wrong = [
        f"{name} imports {to}"
        for name in SOURCES
        if (room := room_of(name)) != "minigpt"
        for to in imports_of(name)
        if to.split(".")[0] == "minigpt" and room_of(to) not in {room} | MAY_IMPORT[room]
    ]
    assert wrong == []


def test_no_modules_import_one_another_in_a_circle() -> None:
    graph = {name: {to for to in imports_of(name) if to in SOURCES} - {name} for name in SOURCES if name != "minigpt"}
    TopologicalSorter(graph).prepare()


def test_settings_and_errors_need_the_standard_library_only() -> None:
    assert outside_imports(STDLIB_ONLY, HEAVY | TERMINAL) == []


def test_only_the_command_line_draws_on_the_terminal() -> None:
    library = {name for name in SOURCES if room_of(name) != "cli"}
    assert outside_imports(library, TERMINAL) == []
    assert {name: calls for name in library if (calls := terminal_calls(SOURCES[name]))} == {}


def test_the_picture_of_the_rooms_is_up_to_date() -> None:
    rooms = load_script("docs/rooms.py")
    assert rooms.PICTURE.read_text(encoding="utf-8") == rooms.picture(), "run: python docs/rooms.py"


def test_every_error_is_made_where_it_is_raised() -> None:
    """One that is raised again keeps the frames of every time, and what is in them."""
    assert [name for name, source in SOURCES.items() if re.search(r"raise _?[A-Z][A-Z_]+\b(?!\()", source)] == []
