"""Hooks of mkdocs: what the site of `make docs` has besides the pages of docs/.

Every file of the site is known by its path in the repository, so that the links of a page lead where they lead there.
The other files that pages link are pages too: Markdown, the text of a file, or the names in a folder.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import dirname, join, normpath
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

import minigpt
import minigpt.config

ROOT = Path(__file__).parents[1]
START_PAGES = {"README.md": "index.html", "docs/README.md": "documentation.html"}
API = "docs/reference/api.md"


def on_config(config: MkDocsConfig) -> None:
    """Makes the anchors of headings as GitHub does."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Replaces the files of docs/ by files with their paths in the repository; adds the API and what pages link."""
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
        if file.inclusion.is_included():
            files.append(file_at(f"docs/{file.src_uri}", config, file.dest_uri))
    files.append(File.generated(config, API, content=api()))
    files.get_file_from_path(API).dest_uri = "reference/api.html"
    pages = [file_at(path.name, config) for path in sorted(ROOT.glob("*.md"))]
    for page in pages:
        files.append(page)
    pages += files.documentation_pages()
    while pages:
        for path in linked_paths(pages.pop()):
            if files.get_file_from_path(path) is None and (ROOT / path).exists():
                files.append(added := linked_file(path, config))
                pages.append(added)


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Removes the backslash that GitHub needs before a `|` in code in a table, and Python-Markdown would show."""
    if isinstance(page.file, Source):
        return markdown
    return re.sub(r"^\|.*`.*\\\|.*", lambda row: re.sub("`[^`]+`", unescaped, row[0]), markdown, flags=re.M)


def unescaped(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")


def file_at(path: str, config: MkDocsConfig, target: str | None = None) -> File:
    """A file of the repository as a file of the site."""
    target = START_PAGES.get(path, target)
    return File(path, str(ROOT), config.site_dir, use_directory_urls=False, dest_uri=target)


def linked_paths(page: File) -> Iterator[str]:
    """The paths in the repository that a page links, whether or not they exist."""
    for target in re.findall(r"\]\(([^)#:\s]+)", page.content_string):
        yield normpath(join(dirname(page.src_uri), target))


class Source(File):  # type: ignore[misc]  # mkdocs is not installed where mypy runs
    """A page that shows what is not Markdown."""

    def is_documentation_page(self) -> bool:
        return True


def linked_file(path: str, config: MkDocsConfig) -> File:
    """The page of a file or folder that a page links; it is in no menu, and the search skips what is not Markdown."""
    if path.endswith(".md"):
        page = file_at(path, config)
    else:
        text = folder_text(path) if (ROOT / path).is_dir() else code_text(path)
        content = f"---\nhide: [toc]\nsearch: {{exclude: true}}\n---\n# `{path}`\n\n{text}"
        page = Source.generated(config, path, content=content)
        page.dest_uri = f"source/{path}.html"
    page.inclusion = InclusionLevel.NOT_IN_NAV
    return page


def code_text(path: str) -> str:
    """A file in a code block with more tildes than a file has."""
    return f"~~~~~~~~ {PurePosixPath(path).suffix[1:]}\n{(ROOT / path).read_text(encoding='utf-8')}\n~~~~~~~~\n"


def folder_text(path: str) -> str:
    """Links to the files in a folder."""
    names = sorted(child.name for child in (ROOT / path).iterdir() if child.is_file())
    return "\n".join(f"- [{name}]({PurePosixPath(path).name}/{name})" for name in names)


# The Python API


def api() -> str:
    """The page of the names in `minigpt.__all__`."""
    names = sorted(minigpt.__all__, key=str.lower)
    errors = [name for name in names if name.endswith("Error")]
    functions = [name for name in names if name.islower()]
    classes = [name for name in names if name not in {*errors, *functions}]
    groups = {"Functions": functions, "Classes": classes, "Errors": errors}
    sections = (f"## {title}\n\n" + "\n".join(entry(name) for name in names) for title, names in groups.items())
    return "# Python API\n\nThe names that `import minigpt` provides.\n\n" + "\n".join(sections)


def entry(name: str) -> str:
    """What the page says of one name; settings have a table instead of a signature."""
    value = getattr(minigpt.config, name, None)
    if not dataclasses.is_dataclass(value):
        return f"::: minigpt.{name}\n"
    options = "{separate_signature: false, show_signature: false, show_bases: false, members: false}"
    return f"::: minigpt.{name}\n    options: {options}\n\n{settings_table(value)}\n"


def settings_table(settings: Any) -> str:
    """The fields of a class of settings, those of every edge included."""
    rows = ["| setting | meaning |", "|---|---|"]
    for field in dataclasses.fields(settings):
        kind = field.type.__name__ if isinstance(field.type, type) else str(field.type).replace("typing.", "")
        cells = f"`{field.name}: {kind} = {field.default!r}`", field.metadata["help"]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


class Docstrings(griffe.Extension):  # type: ignore[misc]
    """Makes Markdown of docstrings: examples are code blocks, and lists and what is raised have paragraphs."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            text = obj.docstring.value
            if obj.path.startswith("minigpt.config.combined."):  # classes that are made when they are imported
                text = inspect.getdoc(getattr(minigpt.config, obj.name)) or text
            text = re.sub(r"\n(?=Raises: |Shapes: |1\. )", "\n\n", text)
            text = re.sub(r"^>>> (?:.+\n?)+", lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text, flags=re.M)
            obj.docstring.value = text
