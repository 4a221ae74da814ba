"""Each kind of issue, planted at a known line and byte, and texts without issues."""

import gzip
import json
from pathlib import Path

import pytest

from minigpt.corpus_report import locations as locations_module
from minigpt.corpus_report.characters import Characters
from minigpt.corpus_report.issues import Issue, find_issues
from minigpt.corpus_report.locations import Location, blocks, find_passages
from minigpt.data.sources import scan
from minigpt.errors import DataError

BEFORE = "Ein schöner Tag — “it’s fine”,\nsaid café » owner, and so on.\n"


def issues_in(path: Path, **options: str) -> dict[str, Issue]:
    found, _ = find_issues(scan(path, encoding_errors="replace", **options), lambda _: None)
    return {issue.kind: issue for issue in found}


def characters_of(path: Path) -> Characters:
    return find_issues(scan(path, encoding_errors="replace"), lambda _: None)[1]


@pytest.mark.parametrize(
    ("kind", "planted", "example"),
    [
        ("invalid bytes", b"caf\xe9 au lait", "say caf\\xe9 au lait"),
        ("mojibake", "Websterâ€™s".encode(), "say Websterâ€™s (for ’)"),
        ("mojibake", "cafÃ© noir".encode(), "say cafÃ© noir (for é)"),
        ("mojibake", "ÐŸÑ€Ð¸Ð²ÐµÑ‚".encode(), "say ÐŸÑ€Ð¸Ð²ÐµÑ‚ (for Привет)"),
        ("replacement characters", "lo\ufffdst".encode(), "say lo\ufffdst"),
        ("byte order marks", "jo\ufeffined".encode(), "say jo\\ufeffined"),
        ("C1 control characters", "a \x93quote\x85".encode(), "say a \\x93quote\\x85"),
        ("decomposed characters", "e\u0301tude".encode(), "say e\\u0301tude"),
        ("zero-width characters", "in\u200bvisible".encode(), "say in\\u200bvisible"),
        ("direction marks", "left\u200fright".encode(), "say left\\u200fright"),
        ("soft hyphens", "hyphen\u00adated".encode(), "say hyphen\\xadated"),
        ("private-use characters", "bullet \uf0b7".encode(), "say bullet \\uf0b7"),
        ("other line separators", "one\u2028two".encode(), "say one\\u2028two"),
        ("words of two scripts", "b\u043eok".encode(), "say b\u043eok"),
        ("zero bytes", b"no\0text", "say no\\x00text"),
        ("control characters", b"bell\x07 rings", "say bell\\x07 rings"),
        ("trailing spaces", b"words  ", "say words  "),
        ("HTML remains", b"<br/>", "say <br/>"),
        ("HTML remains", b"a&nbsp;b", "say a&nbsp;b"),
        (
            "Project Gutenberg's licence",
            b"*** START OF THE PROJECT GUTENBERG EBOOK MOBY DICK ***",
            "say *** START OF THE PROJECT GUTENBERG EBOOK MOBY DICK ***",
        ),
    ],
)
def test_each_kind_is_found_at_its_location_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, planted: bytes, example: str
) -> None:
    path = tmp_path / "text.txt"
    start = (BEFORE * 20).encode() + b"say "
    path.write_bytes(b"\xef\xbb\xbf" + start + planted + b"\n" + BEFORE.encode())
    for size in (100, 2**20) if kind != "zero bytes" else (100,):  # in the first block they make the file binary
        monkeypatch.setattr(locations_module, "BLOCK_SIZE", size)
        monkeypatch.setattr("minigpt.data.sources.BLOCK_SIZE", 1000)
        found = issues_in(path)
        assert set(found) - {"C1 control characters" if kind == "other line separators" else ""} == (
            {kind, "other line separators"} if "\\x85" in example else {kind}
        )
        location = found[kind].locations[0]
        assert location.line == 41
        assert found[kind].example == example
        first = len(b"\xef\xbb\xbf" + start)
        assert location.byte in range(first, first + len(planted))


@pytest.mark.parametrize(
    "text",
    [
        "« Voilà », dit-il ; « À côté du café », l’été. CAFÉ» ¿Qué? Ærø, ÎLE, Ðó\n",
        "Привет, мир. Ρωμαϊκός κόσμος. 5 μm, Δx, שלום, مرحبا, 漢字かな交じり文。हिन्दी\n",
        "a < b & c > d; x <- y; <3; AT&T; *** stars ***; Project Gutenberg's first book\n",
        "the mean x\u0304, which no single character is\n",
        "emoji 👩\u200d👩\u200d👧 and Persian می\u200cخواهم\n",
    ],
)
def test_good_text_in_any_language_has_no_issue(tmp_path: Path, text: str) -> None:
    path = tmp_path / "good.txt"
    path.write_text(text * 3, encoding="utf-8")
    assert issues_in(path) == {}


@pytest.mark.parametrize("size", [10, 2**20])
@pytest.mark.parametrize(
    ("encoding", "content", "line", "example"),
    [
        ("cp1252", b"one\ncaf\xe9 \x81 noir\n", 2, "café \\x81 noir"),
        ("ascii", b"one\ntwo\nthree caf\xff\xc3\xa9\n", 3, "three caf\\xff\\xc3\\xa9"),  # two together are UTF-8
        ("utf-16-le", "one\ntwo".encode("utf-16-le") + b"\0\xd8!", 2, "two\\x00\\xd8\\x21"),
        ("utf-16-le", "one\ntwo".encode("utf-16-le") + b"!", 2, "two\\x21"),
    ],
)
def test_bytes_that_are_invalid_in_another_encoding_are_located_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, encoding: str, content: bytes, line: int, example: str
) -> None:
    monkeypatch.setattr(locations_module, "BLOCK_SIZE", size)
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(DataError):
        scan(path, encoding=encoding)
    ((kind, issue),) = issues_in(path, encoding=encoding).items()
    assert (kind, issue.count, issue.example) == ("invalid bytes", 1, example)
    assert issue.advice == "training stops at the first; name another --encoding, or use --encoding-errors replace"
    assert issue.locations == (Location(str(path), line, None),)
    assert str(issue.locations[0]) == f"{path}:{line}"


def test_bytes_that_are_invalid_in_another_encoding_are_found_in_records(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "one"}\n{"text": "a\\ud83d\x81b"}\n')
    found = issues_in(path, encoding="cp1252")
    assert {kind: issue.locations for kind, issue in found.items()} == {
        "invalid bytes": (Location(str(path), 2, None),),
        "replacement characters": (Location(str(path), 2, None),),  # the half of a surrogate pair
    }
    path.write_bytes('{"text": "a'.encode("utf-32-le") + b"ABCD" + 'b"}'.encode("utf-32-le"))
    ((kind, issue),) = issues_in(path, encoding="utf-32-le").items()
    assert (kind, issue.example) == ("invalid bytes", "a\\x41\\x42\\x43\\x44b")


def test_an_issue_has_its_count_and_the_first_four_locations(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"a\xffb\n" * 10)
    issue = issues_in(path)["invalid bytes"]
    assert issue.count == 10
    assert [(location.line, location.byte) for location in issue.locations] == [(1, 1), (2, 5), (3, 9), (4, 13)]


def test_line_endings_are_counted_and_the_rarest_is_located(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"one\ntwo\r\nthree\nfour\rfive\nsix\r\n")
    issue = issues_in(path)["mixed line ends"]
    assert issue.example == "3 LF, 2 CRLF, 1 CR"
    assert (issue.count, issue.locations[0]) == (1, Location(str(path), 4, 19))
    path.write_bytes(b"one\r\ntwo\r\n")
    assert set(issues_in(path)) == {"Windows line ends"}
    path.write_bytes(b"one\rtwo\r")
    assert set(issues_in(path)) == {"old Mac line ends"}
    assert characters_of(path).lines == 2


def test_a_very_long_line_is_located(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("short\n" + "word " * 5000 + "end\nshort\n")
    issue = issues_in(path)["very long lines"]
    assert (issue.locations[0].line, issue.example) == (2, "25,003 characters")


def test_locations_in_gzip_files_and_records_are_those_of_the_uncompressed_file(tmp_path: Path) -> None:
    zipped, rows = tmp_path / "text.txt.gz", tmp_path / "rows.jsonl"
    zipped.write_bytes(gzip.compress(b"fine\nbad \xff\n"))
    assert issues_in(zipped)["invalid bytes"].locations == (Location(str(zipped), 2, 9),)
    lines = [json.dumps({"body": "fine\nfine"}), "", json.dumps({"body": "three\nlines\nzero\u200bwidth"})]
    rows.write_text("\n".join(lines) + "\n")
    assert issues_in(rows, text_key="body")["zero-width characters"].locations == (
        Location(str(rows), 3, len(lines[0]) + 2),
    )


@pytest.mark.parametrize("blank", ["\u00a0", "\f", " \u2003\t"])
def test_lines_of_white_space_are_skipped_as_in_training(tmp_path: Path, blank: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{blank}\n{{"text": "one"}}\n', encoding="utf-8")
    assert [(block.text, block.line) for block in blocks(scan(path))] == [("one", 2)]


def test_half_a_pair_before_a_byte_that_is_not_utf8_is_replaced_as_in_training(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "a\\ud83d\xff"}\n')
    found = scan(path, encoding_errors="replace")
    assert "".join(piece for piece, _ in found.pieces()) == "a\ufffd\ufffd"
    assert [block.text for block in blocks(found)] == ["a\ufffd\udcff"]
    assert issues_in(path)["invalid bytes"].count == 1


def test_characters_and_scripts_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("abcdef жз 漢\n", encoding="utf-8")
    characters = characters_of(path)
    assert (characters.total, characters.lines, characters.longest_line) == (12, 1, 11)
    assert characters.scripts() == pytest.approx({"Latin": 6 / 9, "Cyrillic": 2 / 9, "Han": 1 / 9})


@pytest.mark.parametrize("size", [10, 64, 2**20])
def test_passages_are_found_at_their_first_two_locations_also_across_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(locations_module, "BLOCK_SIZE", size)
    path, passage = tmp_path / "text.txt", "a passage\nover two lines"
    path.write_text(f"näh {passage} x\n{BEFORE}y {passage}\n{passage}\n", encoding="utf-8")
    data = path.read_bytes()
    first = data.index(passage.encode())
    second = data.index(passage.encode(), first + 1)
    found = find_passages(scan(path), [passage, "not there", ""])
    assert found == {passage: [Location(str(path), 1, first), Location(str(path), 5, second)], "not there": []}


@pytest.mark.parametrize("size", [10, 15, 2**20])
def test_windows_line_endings_between_two_blocks_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(locations_module, "BLOCK_SIZE", size)
    path, passage = tmp_path / "text.txt", "the passage"  # with one character more than a line
    path.write_bytes(b"01234567\r\n" * 30 + passage.encode() + b"\r\n" + b"01234567\r\n" * 30 + passage.encode())
    found = find_passages(scan(path), [passage])
    assert found == {passage: [Location(str(path), 31, 300), Location(str(path), 62, 613)]}
