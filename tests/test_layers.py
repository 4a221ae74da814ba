"""Which room of the package may import which, held true by reading every import in the source."""

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

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
ONLY_FROM_THE_PACKAGE_ITSELF = {"__version__"}
HEAVY = {"torch", "numpy", "tiktoken", "tokenizers", "safetensors", "huggingface_hub", "transformers", "matplotlib"}

Sources = Mapping[str, str]


def read_sources() -> dict[str, str]:
    """Every module of the package by its dotted name, a package by its own (`minigpt.model`)."""
    found = {}
    for path in sorted((ROOT / "minigpt").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


SOURCES = read_sources()


def is_package(name: str, sources: Sources) -> bool:
    return any(other.startswith(f"{name}.") for other in sources) or name == "minigpt"


@functools.cache
def import_statements(source: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports_of(name: str, sources: Sources) -> Iterator[str]:
    """The modules that a module imports, inside functions and under TYPE_CHECKING too.

    `from minigpt import config` counts as `minigpt.config`, and a name that is no module counts as its module.
    """
    for node in import_statements(sources[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                up = node.level - is_package(name, sources)
                base = ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                if full in sources:
                    yield full
                elif base == "minigpt" and alias.name in ONLY_FROM_THE_PACKAGE_ITSELF:
                    continue
                else:
                    yield base


def room_of(name: str) -> str:
    """`minigpt.model.gpt` is in `model`, `minigpt.config` is `config`; the front door is `minigpt`."""
    return name.split(".")[1] if "." in name else name


def upward_imports(sources: Sources) -> list[str]:
    """Every import that the table does not allow; the front door's lazy names lead into every room, by design."""
    wrong = []
    for name in sources:
        room = room_of(name)
        if room == "minigpt":
            continue
        for target in imports_of(name, sources):
            inside = target.split(".")[0] == "minigpt"
            if inside and room_of(target) != room and room_of(target) not in MAY_IMPORT.get(room, set()):
                wrong.append(f"{name} imports {target}")
    return wrong


def outside_imports(names: set[str], forbidden: set[str], sources: Sources) -> list[str]:
    """Where modules of `names` import one of the `forbidden` distributions."""
    return [
        f"{name} imports {target}"
        for name in sources
        if name in names
        for target in imports_of(name, sources)
        if target.split(".")[0] in forbidden
    ]


def cycle_in(sources: Sources) -> list[str]:
    """Modules that import one another in a circle, or nothing."""
    graph = {
        name: {target for target in imports_of(name, sources) if target in sources and target != name}
        for name in sources
        if name != "minigpt"
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def importers_of_foundations(sources: Sources) -> list[str]:
    return [
        f"{name} imports {target}"
        for name in sources
        if room_of(name) != "foundations"
        for target in imports_of(name, sources)
        if room_of(target) == "foundations"
    ]


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


# The package


def test_every_module_stands_in_a_room_of_the_table() -> None:
    assert {room_of(name) for name in SOURCES} - {"minigpt"} == set(MAY_IMPORT)
    assert "minigpt.model.attention" in SOURCES


def test_imports_point_down_the_table() -> None:
    assert upward_imports(SOURCES) == []


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert cycle_in(SOURCES) == []


def test_nothing_imports_the_foundations() -> None:
    assert "minigpt.foundations.attention" in SOURCES
    assert importers_of_foundations(SOURCES) == []


def test_settings_and_errors_need_the_standard_library_only() -> None:
    assert outside_imports(STDLIB_ONLY, HEAVY | TERMINAL, SOURCES) == []


def test_only_the_command_line_draws_on_the_terminal() -> None:
    library = {name for name in SOURCES if room_of(name) != "cli"}
    assert outside_imports(library, TERMINAL, SOURCES) == []
    assert {name: calls for name in library if (calls := terminal_calls(SOURCES[name]))} == {}


def test_the_script_at_the_root_is_the_command_line_and_nothing_else() -> None:
    sources = {**SOURCES, "cli": (ROOT / "cli.py").read_text(encoding="utf-8")}
    assert {target for target in imports_of("cli", sources) if target.startswith("minigpt")} <= {
        "minigpt.cli",
        "minigpt.cli.start",
    }


def test_the_picture_of_the_rooms_is_up_to_date() -> None:
    script = ROOT / "docs" / "rooms.py"
    spec = importlib.util.spec_from_file_location("rooms", script)
    assert spec is not None
    assert spec.loader is not None
    rooms = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rooms)
    assert rooms.PICTURE.read_text(encoding="utf-8") == rooms.picture(), "run: python docs/rooms.py"


def test_no_module_is_named_for_holding_odds_and_ends() -> None:
    assert {name for name in SOURCES if name.split(".")[-1] in {"utils", "util", "common", "helpers", "misc"}} == set()


# The reader itself: each rule, broken once


def planted(name: str, source: str) -> dict[str, str]:
    return {**SOURCES, name: source}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("minigpt.config", "import minigpt.device"),
        ("minigpt.errors", "from minigpt import config"),
        ("minigpt.model.gpt", "def build():\n    from minigpt.tokenizer.tokenizer import Tokenizer"),
        ("minigpt.model.gpt", "from minigpt import GPTConfig"),
        ("minigpt.model.gpt", "from ..storage import checkpoint"),
        ("minigpt.data.corpus", "from minigpt.model.gpt import GPT"),
        ("minigpt.generation.decoding", "import minigpt.storage.checkpoint as checkpoint"),
        (
            "minigpt.evaluation.perplexity",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import minigpt.training",
        ),
        ("minigpt.training.loop", "from minigpt.cli.app import main"),
    ],
)
def test_an_import_that_points_up_is_seen(name: str, source: str) -> None:
    assert len(upward_imports(planted(name, source))) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("minigpt.storage.checkpoint", "from minigpt import __version__"),
        (
            "minigpt.model.gpt",
            "from . import attention\nfrom .attention import attend\nfrom ..errors import ConfigError",
        ),
        ("minigpt.model", "from .gpt import GPT"),
        ("minigpt.training.loop", "import torch\nfrom minigpt.evaluation.perplexity import evaluate"),
    ],
)
def test_an_import_that_points_down_or_sideways_is_left_alone(name: str, source: str) -> None:
    assert upward_imports(planted(name, source)) == []


def test_a_circle_inside_a_room_is_seen() -> None:
    circle = planted("minigpt.model.attention", "def late():\n    from minigpt.model import gpt")
    assert set(cycle_in(circle)) == {"minigpt.model.attention", "minigpt.model.gpt"}


def test_an_import_of_the_foundations_is_seen() -> None:
    assert importers_of_foundations(planted("minigpt.model.gpt", "from minigpt import foundations"))
    assert importers_of_foundations(
        planted("minigpt.cli.app", "from minigpt.foundations.attention import CausalAttention")
    )


def test_a_heavy_import_is_seen() -> None:
    assert outside_imports(STDLIB_ONLY, HEAVY, planted("minigpt.config", "def f():\n    from torch import nn"))


@pytest.mark.parametrize(
    "source", ["print(1)", "import sys\nsys.exit(1)", "from sys import exit", "raise SystemExit", "raise SystemExit(2)"]
)
def test_a_call_that_belongs_to_a_program_is_seen(source: str) -> None:
    assert terminal_calls(source)


def test_printing_to_a_string_is_no_print() -> None:
    assert terminal_calls("printer.print('x')\nsys.stdout.flush()") == []


def test_every_error_is_made_where_it_is_raised() -> None:
    """One that is raised again keeps the frames of every time, and what is in them."""
    assert [name for name, source in SOURCES.items() if re.search(r"raise _?[A-Z][A-Z_]+\b(?!\()", source)] == []
