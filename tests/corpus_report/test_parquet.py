"""The report on Parquet files."""

from pathlib import Path
from typing import Any

import pytest

from minigpt.corpus_report.issues import find_issues
from minigpt.corpus_report.locations import blocks
from minigpt.data.sources import scan

ROWS = [{"text": f"document {number} " * 3, "id": number} for number in range(700)]
TEXTS = [row["text"] for row in ROWS]


def parquet_file(path: Path, columns: dict[str, list[Any]], **options: Any) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def test_the_rows_are_located_for_the_corpus_report(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "web.parquet", {"text": TEXTS})
    located = {block.text: str(block.locate(0)) for block in blocks(scan([path]))}
    assert located[TEXTS[41]] == f"{path}:42 (byte 0)"


def test_the_corpus_report_finds_the_bytes_of_a_parquet_file_at_which_training_stops(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "web.parquet", {"text": [b"one", b"caf\xe9"]})
    (issue,) = find_issues(scan([path], encoding_errors="replace"), lambda _: None)[0]
    assert (issue.kind, issue.locations[0].line, issue.example) == ("invalid bytes", 2, "caf\\xe9")
    assert issue.advice == "training stops at the first; correct them, or use --encoding-errors replace"
