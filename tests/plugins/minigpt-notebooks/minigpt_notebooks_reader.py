"""Reads the cells of Jupyter notebooks (nbformat 4)."""

import json
from pathlib import Path

from minigpt.data.formats import TextReader
from minigpt.errors import DataError


def _text(path: Path, name: str, encoding: str, errors: str) -> str:
    """The sources of a notebook's cells, with an empty line between two."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        return "\n\n".join("".join(cell["source"]) for cell in notebook["cells"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{name} is not a Jupyter notebook of format 4; save it again") from error


READER = TextReader(suffixes=(".ipynb",), text=_text)
