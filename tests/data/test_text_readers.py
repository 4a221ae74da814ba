"""What reads files of other formats than plain text and .jsonl, and what is said where it is not installed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minigpt.config import ReadingConfig
from minigpt.data import corpus, formats, records, texts
from minigpt.data.formats import TextReader
from minigpt.data.records import Record
from minigpt.data.source_files import SourceFile
from minigpt.data.texts import find_texts
from minigpt.errors import DataError, TokenizerError
from minigpt.tokenizer import other_vocabulary
from minigpt.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that installs these readers of texts, and nothing else."""

    def installed(*readers: TextReader) -> None:
        for module in (corpus, formats, records, texts, other_vocabulary):
            monkeypatch.setattr(module, "provided", lambda seam: readers if seam == "text_reader" else ())
        formats._unread.cache_clear()

    yield installed
    formats._unread.cache_clear()


def documents(path: Path) -> list[str]:
    (scan,) = find_texts([str(path)], ReadingConfig()).scans
    return "".join(piece + "|" * ends for piece, ends in scan.pieces()).split("|")[:-1]


def test_a_reader_gives_the_whole_text_of_a_file(tmp_path: Path, install: Any) -> None:
    def read(path: Path, name: str, encoding: str, errors: str) -> str:
        return f"{path.read_bytes().hex()} {encoding} {errors}"

    install(TextReader(suffixes=(".hex",), text=read, unread={".dec": "is decimal; convert it"}))
    path = tmp_path / "A.HEX"
    path.write_bytes(b"\0\xff")
    assert documents(path) == ["00ff utf-8 strict"]
    (tmp_path / "b.dec").write_text("12")
    with pytest.raises(DataError, match=r"b\.dec is decimal; convert it"):
        documents(tmp_path / "b.dec")


def test_a_reader_gives_the_records_of_a_file_or_leaves_it_a_plain_text(tmp_path: Path, install: Any) -> None:
    def rows(file: SourceFile, key: str) -> Iterator[Record] | None:
        lines = file.path.read_text().splitlines()
        return (Record(f"{key}: {line}", is_conversation=False) for line in lines[1:]) if lines[0] == "rows" else None

    install(TextReader(suffixes=(".rows",), is_binary=False, records=rows))
    (tmp_path / "a.rows").write_text("rows\none\ntwo\n")
    (tmp_path / "b.rows").write_text("plain\n")
    assert documents(tmp_path / "a.rows") == ["text: one", "text: two"]
    assert documents(tmp_path / "b.rows") == ["plain\n"]


def test_without_readers_plain_text_and_lines_of_json_are_read_and_other_formats_refused(
    tmp_path: Path, install: Any
) -> None:
    install()
    (tmp_path / "a.txt").write_text("plain")
    (tmp_path / "b.jsonl").write_text('{"text": "record"}\n')
    assert documents(tmp_path / "a.txt") + documents(tmp_path / "b.jsonl") == ["plain", "record"]
    for name in ("page.html", "book.epub", "table.parquet", "log.json", "film.srt"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(DataError, match=f"{name} cannot be read: what reads this format is not installed"):
            documents(tmp_path / name)
    (tmp_path / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "Hello"}]}\n')
    with pytest.raises(DataError, match=r"has no key 'text'.*, because what reads conversations is not installed"):
        documents(tmp_path / "chat.jsonl")


def test_without_readers_a_tokenizer_of_other_rules_is_refused(tmp_path: Path, install: Any) -> None:
    install()
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordPiece", "vocab": {}}}')
    with pytest.raises(TokenizerError, match=r"must be 'BPE'; what reads other tokenizers is not installed"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"minigpt_ids_only": [5, 1]}')
    with pytest.raises(TokenizerError, match="what reads its ids is not installed"):
        Tokenizer.load(tmp_path)
