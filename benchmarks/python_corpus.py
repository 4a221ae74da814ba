"""Writes about 2 MB of English text that ships with Python: the help topics and the docstrings of the library.

    python benchmarks/python_corpus.py OUT.txt

The text depends only on the version of Python; <|endoftext|> separates documents.
"""

import argparse
import ast
import inspect
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics


def docstrings(source: str) -> Iterator[str]:
    """Every long docstring of a module's source, in order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old library modules
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text and len(text) > 80:
                yield inspect.cleandoc(text)


def documents() -> Iterator[str]:
    """The help topics, followed by one document per library module."""
    for name in sorted(topics):
        yield topics[name].strip()
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        inside = path.relative_to(library).parts
        if {"test", "tests", "idlelib", "site-packages", "lib2to3", "__pycache__"} & set(inside):
            continue
        try:
            texts = list(docstrings(path.read_text(encoding="utf-8")))
        except (SyntaxError, UnicodeDecodeError):
            continue  # a few library files are invalid on purpose
        if texts:
            yield "\n\n".join(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes English text that ships with Python.")
    parser.add_argument("target", type=Path, metavar="OUT.txt")
    target: Path = parser.parse_args().target
    target.parent.mkdir(parents=True, exist_ok=True)
    text = "\n<|endoftext|>".join(documents()) + "\n"
    target.write_text(text, encoding="utf-8")
    print(f"{target}: {len(text.encode()):,} bytes of Python's own documentation")


if __name__ == "__main__":
    main()
