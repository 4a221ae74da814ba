"""Keeps the results of scans of large texts, so that these are not read again to be recognized."""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from minigpt.bounded_reading import read_json_value
from minigpt.data.source_files import SourceFile
from minigpt.data.sources import measure_text

_REMEMBERED = 2**26  # bytes of files from which on the result of a scan is kept
_MEASURED = ("text_bytes", "n_documents", "n_conversations", "n_unlearned", "document_lengths", "content_hash")


def measure(cache: Path | None, seen: set[bytes] | None, files: Sequence[SourceFile]) -> dict[str, Any]:
    """Like `measure_text`; without `seen`, the result for a large text is kept in the folder `cache`, under the paths,
    sizes and times of change of its files."""
    path = None if cache is None or seen is not None else _remembered_path(cache, files)
    measured = None if path is None else _remembered(path)
    if measured is None:
        measured = measure_text(files, seen)
        if path is not None:
            _remember(path, measured)
    return measured


def _remembered_path(cache: Path, files: Sequence[SourceFile]) -> Path | None:
    """The file that keeps the result of a scan of these files; None for a small text."""
    found = [(file, file.stat()) for file in files]
    if sum(status.st_size for _, status in found) < _REMEMBERED or any(str(file.path) != file.name for file in files):
        return None  # copies of pipes and documents have other paths each time
    key = [[os.path.realpath(file.path), *file.decoding, status.st_size, status.st_mtime_ns] for file, status in found]
    named = json.dumps([_MEASURED, vars(files[0].reading), key]).encode()
    return cache / "scans" / f"{hashlib.sha256(named).hexdigest()[:32]}.json"


def _remembered(path: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        measured = read_json_value(path)
        return {name: measured[name] for name in _MEASURED} | {"document_lengths": tuple(measured["document_lengths"])}
    return None


def _remember(path: Path, measured: dict[str, Any]) -> None:
    """Keeps a result; a cache that cannot be written costs time only."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps({name: measured[name] for name in _MEASURED}), encoding="utf-8")
        temporary.replace(path)
