"""Encodings: the one that is likely is named, and named ones are read."""

import codecs
import gzip
from pathlib import Path

import pytest

from minigpt.config import ReadingConfig
from minigpt.data.encodings import likely_encoding
from minigpt.data.source_files import Decoding, decode
from minigpt.data.sources import scan
from minigpt.errors import ConfigError, DataError

GERMAN = "Die Frau für große Mühe — „gut“, sagte sie. Über Äpfel und Öl.\n" * 30
PLAIN = "Die Frau für große Mühe, sagte sie. Über Äpfel und Öl.\n" * 30


def text_of(path: Path, **options: str) -> str:
    return "".join(piece for piece, _ in scan(path, **options).pieces())


@pytest.mark.parametrize(
    ("encoding", "text", "expected"),
    [
        ("latin-1", PLAIN, "latin-1"),
        ("cp1252", GERMAN, "windows-1252"),
        ("utf-16", GERMAN, "utf-16"),
        ("utf-16-le", GERMAN, "utf-16-le"),
        ("utf-16-be", GERMAN, "utf-16-be"),
        ("utf-32", GERMAN, "utf-32"),
        ("cp1251", "Привет, мир\n" * 30, None),
        ("shift_jis", "こんにちは\n" * 30, None),
    ],
)
def test_the_error_of_a_text_names_its_likely_encoding_and_reading_it_with_that_gives_the_text(
    tmp_path: Path, encoding: str, text: str, expected: str | None
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(encoding))
    assert likely_encoding(path.read_bytes()) == expected
    with pytest.raises(DataError, match=r"a\.txt is not UTF-8") as error:
        scan(path)
    hint = f"--encoding {expected}" if expected else "name its encoding with --encoding, or use --encoding-errors"
    assert hint in str(error.value)
    assert text_of(path, encoding=expected or encoding) == text


def test_random_bytes_have_no_likely_encoding() -> None:
    assert likely_encoding(bytes(range(256)) * 4) is None
    assert likely_encoding(bytes(range(128, 256)) * 4) is None
    assert likely_encoding(b"") is None


def test_a_damaged_utf8_text_is_not_taken_for_latin1() -> None:
    assert likely_encoding(GERMAN.encode().replace("ü".encode(), b"\xfc", 1)) is None


def test_bytes_that_the_encoding_does_not_have_are_named_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 70_000 + b"\x81y")
    with pytest.raises(DataError, match=r"a\.txt is not cp1252: byte 70,000 is 0x81; name another --encoding"):
        scan(path, encoding="cp1252")
    assert text_of(path, encoding="cp1252", encoding_errors="replace").endswith("x\ufffdy")
    path.write_bytes("ab".encode("utf-16-le") + b"\0")
    with pytest.raises(DataError, match=r"a\.txt is not utf-16-le: byte 4"):
        scan(path, encoding="utf-16-le")


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(codecs.BOM_UTF16_LE + "hi".encode("utf-16-le"))
    assert text_of(path, encoding="utf-16-le") == text_of(path, encoding="utf-16") == "hi"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("utf8x", "did you mean utf-8?"),
        ("latin_9x", "did you mean iso8859-15"),
        ("rot13", "is not the name of a text encoding"),
        ("idna", "is not the name of a text encoding"),
        ("", "such as utf-8, latin-1, windows-1252 or utf-16"),
        ("a\0b", "is not the name of a text encoding"),
    ],
)
def test_a_wrong_name_is_refused_with_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        ReadingConfig(encoding=name)
    assert hint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "shift_jis"])
@pytest.mark.parametrize("named", ["a folder", "a glob", "files"])
def test_files_that_are_utf8_stay_utf8_and_are_named(tmp_path: Path, encoding: str, named: str) -> None:
    texts = {"bom.txt": "Häuser\n", "good.txt": "Läuft\n", "other.txt": "Grüße\n", "rows.jsonl": '"Öl"\n'}
    texts |= {"other.txt": "こんにちは\n"} if encoding == "shift_jis" else {}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text.encode(encoding if name == "other.txt" else "utf-8"))
    (tmp_path / "bom.txt").write_bytes(codecs.BOM_UTF8 + texts["bom.txt"].encode())
    (tmp_path / "rows.jsonl").write_text('{"text": "Öl"}\n', encoding="utf-8")
    paths = [str(tmp_path / name) for name in texts]
    sources = {"a folder": [str(tmp_path)], "a glob": [str(tmp_path / "*")], "files": paths}[named]
    found = scan(sources, encoding=encoding)
    assert "".join(piece for piece, _ in found.pieces()) == f"Häuser\nLäuft\n{texts['other.txt']}Öl"
    bom, good, other, _ = paths
    utf8 = f"read 3 files that are UTF-8 as that, not as {encoding}: {bom}, {good}, {paths[3]}"
    assert found.notes == (f"{utf8}; read as {encoding}: {other}",)


def test_plain_ascii_is_read_in_the_encoding_without_a_note(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("plain")
    (tmp_path / "b.txt").write_text("Übung", encoding="cp1252")
    assert scan(tmp_path, encoding="cp1252").notes == ()
    assert scan(tmp_path / "a.txt", encoding="utf-16").notes != ()  # it would be other characters in UTF-16
    assert text_of(tmp_path / "a.txt", encoding="utf-16") == "plain"


def test_text_with_zero_bytes_and_a_text_that_is_no_utf8_at_its_end_are_not_taken_for_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("aé".encode("utf-16-le"))
    assert text_of(tmp_path / "a.txt", encoding="utf-16-le") == "aé"
    (tmp_path / "a.txt").write_bytes("für Ã".encode("cp1252"))
    assert text_of(tmp_path / "a.txt", encoding="cp1252") == "für Ã"


@pytest.mark.parametrize(
    ("evident", "encoding"),
    [
        *[(each, "windows-1252") for each in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")],
        *[("utf-16", each) for each in ("utf-16", "utf-16-be", "utf-32", "shift_jis")],
        *[("utf-32", each) for each in ("utf-16", "utf-16-le", "utf-32-be")],
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_text_that_is_evidently_utf16_or_utf32_is_read_as_that(
    tmp_path: Path, evident: str, encoding: str, zipped: bool
) -> None:
    content = GERMAN.encode(evident)
    path = tmp_path / f"a.txt{'.gz' * zipped}"
    path.write_bytes(gzip.compress(content) if zipped else content)
    (tmp_path / "b.txt").write_text("こんにちは" if encoding == "shift_jis" else "Übung", encoding=encoding)
    found = scan(tmp_path, encoding=encoding)
    assert "".join(piece for piece, _ in found.pieces()) == GERMAN + (tmp_path / "b.txt").read_text(encoding=encoding)
    assert decode(content, "prompts", Decoding(encoding)) == (GERMAN, evident if evident != encoding else None)
    note = f"read a file that is {evident.upper()} as that, not as {encoding}: {path}; read as {encoding}: "
    expected = () if evident == encoding else (note + str(tmp_path / "b.txt"),)
    assert found.notes == expected
