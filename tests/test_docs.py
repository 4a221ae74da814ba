"""The README and the documentation: links work, Python runs, commands parse, and the table of concepts is true."""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml
from scripts import ROOT, load_script

from minigpt import GPT, GPTConfig, Tokenizer, save_checkpoint
from minigpt.cli.app import app
from minigpt.edges import EDGES

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, ROOT / "checkpoints" / "README.md", *sorted(DOCS.rglob("*.md"))]
CONCEPTS = DOCS / "reference" / "concepts.md"
PACKAGES = DOCS / "how-to" / "extend.md"  # whole packages, which tests/test_plugins.py installs and tries
SENTENCE = "Once upon a time there was a quick brown fox. "


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def without_code(text: str) -> str:
    """The text without fenced code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def code_blocks(page: Path, language: str) -> list[str]:
    """The fenced code blocks of a page in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", read(page), re.DOTALL | re.MULTILINE)


# Links


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", without_code(read(page)), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", without_code(read(page))):
        if target.startswith("http"):
            continue
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


def test_the_index_links_every_page() -> None:
    index = DOCS / "README.md"
    linked = {(DOCS / target).resolve() for target in re.findall(r"\]\(([^)#\s]+\.md)", read(index))}
    assert set(DOCS.rglob("*.md")) - {index} == linked


def groups_in_the_index() -> list[tuple[str, str, list[str]]]:
    """The section, the group and the pages of each list item of the index; a page without a group is alone."""
    found = []
    sections = re.split(r"^## (.+)\n", read(DOCS / "README.md"), flags=re.MULTILINE)[1:]
    for section, items in zip(sections[::2], sections[1::2], strict=True):
        for group, item in re.findall(r"^- (?:([\w ]+): (?=\[))?(.*?)(?=^- |\Z)", items, re.DOTALL | re.MULTILINE):
            pages = [f"docs/{page}" for page in re.findall(r"\]\(([^)#\s]+\.md)", item)]
            found += [(section, group, pages)] if group else [(section, "", [page]) for page in pages]
    return found


def test_the_menu_of_the_site_is_the_index() -> None:
    """All sections, groups and pages in the index's order; besides, the pages beside docs/ and the Python API."""
    start, index, *sections = yaml.safe_load(read(ROOT / "mkdocs.yml"))["nav"]
    others = [section for section in sections if isinstance(section, str)]
    assert [start, index] == [{"Start": "README.md"}, {"Contents": "docs/README.md"}]
    assert {"README.md", *others} == {path.name for path in ROOT.glob("*.md")}
    menu = []
    for [(section, entries)] in (named.items() for named in sections if isinstance(named, dict)):
        for entry in entries:
            [(group, pages)] = entry.items() if isinstance(entry, dict) else [("", [entry])]
            menu.append((section, group, pages))
    api = ("Reference", "", ["docs/reference/api.md"])
    assert not (ROOT / api[2][0]).exists()  # it is made of the docstrings
    menu.remove(api)
    assert menu == groups_in_the_index()


def test_the_table_of_extras_is_that_of_pyproject() -> None:
    extras = load_script("docs/extras.py")
    assert read(extras.PAGE) == extras.page_with_table(), "run: python docs/extras.py"


# Text


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_code_block_is_empty(page: Path) -> None:
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```$", read(page), re.DOTALL | re.MULTILINE)
    assert all(block.strip() for block in blocks)


def test_the_readme_is_short() -> None:
    """At most 700 words; tables count, code blocks do not."""
    assert len(without_code(read(README)).split()) <= 700


# Python


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that the examples use."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    for name in ("corpus.txt", "book.txt"):
        (tmp_path / name).write_text(SENTENCE * 200)
    (tmp_path / "lambada_test.jsonl").write_text(json.dumps({"text": SENTENCE.strip(". ")}) + "\n")
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=257, n_positions=128, n_embd=8, n_layer=1, n_head=2))
    save_checkpoint(tmp_path / "checkpoints" / "moby_dick", model, Tokenizer.named("bytes"))
    return tmp_path


def run_python(page: Path) -> None:
    """Runs the blocks of a page in order, as one program; trainings are shortened to two steps."""
    source = "\n".join(code_blocks(page, "python"))
    for length in ("minutes=1", "steps=500"):
        source = source.replace(length, "steps=2")
    exec(compile(source, name_of(page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in (README, PACKAGES) and code_blocks(page, "python")], ids=name_of
)
def test_the_python_of_a_page_runs(page: Path, folder: Path) -> None:
    run_python(page)


def test_the_python_of_the_readme_trains_and_generates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_python(README)
    assert "Finished(step=2" in capsys.readouterr().out


# Commands


def commands_in(text: str) -> Iterator[str]:
    """The `minigpt` commands of a page: lines of code blocks, and inline code."""
    for kind, block in re.findall(r"^```(console)?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            prompt = r"\$ " if kind else r"(?:torchrun .*-m )?"
            if found := re.match(prompt + r"(minigpt .*)", line):
                yield found[1]
    for code in re.findall(r"`([^`\n]+)`", without_code(text)):
        if found := re.match(r"(?:\w+=\S+ |torchrun .*-m )*(minigpt [\w-]+.*)", code.replace("\\|", "|")):
            yield found[1]


COMMANDS = sorted({(name_of(page), command) for page in PAGES for command in commands_in(read(page))})


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_line_parses(page: str, command: str) -> None:
    """The command and its options exist, and their values have the right type; nothing is run."""
    root: Any = typer.main.get_command(app)
    _, name, *arguments = shlex.split(command, comments=True)
    if name.startswith("--"):
        return
    assert name in root.commands, command
    context = typer.Context(root.commands[name], info_name=name)
    values, _, order = root.commands[name].make_parser(context).parse_args(arguments)
    for parameter in order:
        if (value := values.get(parameter.name)) is not None and not parameter.is_eager:
            parameter.process_value(context, value)


# The table of concepts


def concepts() -> list[tuple[str, str, str]]:
    """The rows of the table: concept, file, symbol."""
    rows = re.findall(r"^\| ([^|]+) \| \[`([^`]+)`\]\([^)]+\) \| `([^`]+)` \|$", read(CONCEPTS), re.MULTILINE)
    return [(concept.strip(), file, symbol) for concept, file, symbol in rows]


def symbols_of(path: Path) -> set[str]:
    """What a file defines: functions, classes, methods, fields, and names assigned at its top level."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return set(re.findall(r"\b(\w+)\s*\(", source))
    found = set()
    for node in ast.parse(source).body:
        found |= names_of(node)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for child in node.body for name in names_of(child)}
    return found


def names_of(node: ast.stmt) -> set[str]:
    """The names that one statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_the_table_has_at_least_40_concepts() -> None:
    assert len({concept for concept, _, _ in concepts()}) >= 40
    table = [line for line in read(CONCEPTS).splitlines() if line.startswith("| ") and ".py" in line]
    assert len(table) <= len(concepts())  # every row has the form that is checked


@pytest.mark.parametrize(("concept", "file", "symbol"), concepts())
def test_a_concept_is_where_the_table_says(concept: str, file: str, symbol: str) -> None:
    assert symbol in symbols_of(ROOT / file)


# The table of seams


def test_the_architecture_is_short() -> None:
    """At most 1,200 words, with the table of seams; its lines and arrows are no words."""
    words = read(DOCS / "architecture.md").split()
    assert len([word for word in words if any(letter.isalnum() for letter in word)]) <= 1200


def test_the_table_of_seams_is_that_of_the_edges() -> None:
    """Every seam has a row with the edges that provide something, and with the file that declares its type."""
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| ([\w, ]+) \|$", read(DOCS / "architecture.md"), re.MULTILINE)
    assert {seam: edges.split(", ") for seam, _, _, edges in rows} == {
        seam: [edge.name for edge in EDGES if seam in edge.provides] for edge in EDGES for seam in edge.provides
    }
    for seam, what, files, _ in rows:
        found = [ROOT / "minigpt" / file for file in re.findall(r"`([^`]+)`", files)]
        assert f'provided("{seam}")' in read(found[-1])
        assert set(re.findall(r"`(\w+)`", what)) <= {name for file in found for name in symbols_of(file)}
