"""Writes about 2 MB of English that every Python ships with: the language reference's help topics and docstrings.

    python benchmarks/python_corpus.py OUT.txt

The text is the same for one version of Python; documents are separated by <|endoftext|>.
"""

import ast
import inspect
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics


def docstrings(source: str) -> Iterator[str]:
    """Every docstring of a module's source, in order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escapes in the library's own strings
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text and len(text) > 80:
                yield inspect.cleandoc(text)


def documents() -> Iterator[str]:
    """The help topics, then one document per library module."""
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
            continue  # a few files of the library are broken on purpose
        if texts:
            yield "\n\n".join(texts)


def main() -> None:
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    text = "\n<|endoftext|>".join(documents()) + "\n"
    target.write_text(text, encoding="utf-8")
    print(f"{target}: {len(text.encode()):,} bytes of Python's own documentation")


if __name__ == "__main__":
    main()
