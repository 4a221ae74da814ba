"""The whole examination, on texts in which something is planted."""

import random
from pathlib import Path
from typing import Any

import pytest

from minigpt.corpus_report import report as doctor
from minigpt.corpus_report.locations import Place
from minigpt.corpus_report.report import Report, examine
from minigpt.data.sources import scan

WORDS = [f"{a}{b}{c}{d}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst" for d in "aeo"]
CHEAP = ("bytes", "chars")


def paragraph(seed: int, words: int = 40) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def book(n: int = 120) -> list[str]:
    return [paragraph(seed) for seed in range(n)]


def report_on(path: Path, paragraphs: list[str], **options: Any) -> Report:
    path.write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
    return examine(scan(path, encoding_errors="replace"), tokenizers=CHEAP, **options)


def test_in_a_sound_text_nothing_is_found(tmp_path: Path) -> None:
    report = report_on(tmp_path / "book.txt", book())
    assert report.findings() == []
    assert (report.repeat, report.overlap.shared, report.near.copies, report.troubles) == (None, 0, 0, [])
    size = (tmp_path / "book.txt").stat().st_size
    assert (report.text_bytes, report.characters, report.lines, report.documents) == (size, size, 239, 1)
    assert report.scripts == {"Latin": 1.0}
    assert report.held_out == "the end of each document"
    assert report.validation_bytes == report.validation_looked_at - 1 == pytest.approx(0.1 * size, rel=0.2)


def test_a_planted_leak_is_found_at_both_its_places_and_is_fixed_first(tmp_path: Path) -> None:
    path, paragraphs = tmp_path / "book.txt", book()
    paragraphs[115] = paragraphs[10]  # the last twelfth is held out
    report = report_on(path, paragraphs)
    assert report.overlap_passage is not None
    text = path.read_bytes()
    first = text.index(paragraphs[10].encode())
    second = text.index(paragraphs[10].encode(), first + 1)
    for place in report.overlap_passage.places:
        assert place.line == text[: place.byte].count(b"\n") + 1
    assert [place.byte for place in report.overlap_passage.places] == pytest.approx([first, second], abs=2)
    assert report.overlap.length == pytest.approx(len(paragraphs[10]), abs=6)
    assert report.overlap.share == pytest.approx((len(paragraphs[10]) - 49) / report.validation_bytes, rel=0.05)
    assert "of the held-out text stands in the training text too" in report.findings()[0].what
    assert report.repeat is not None
    assert report.repeat_passage is not None
    assert report.repeat_passage.places == report.overlap_passage.places


def test_planted_copies_are_counted_with_their_share_and_found(tmp_path: Path) -> None:
    path, paragraphs = tmp_path / "book.txt", book()
    paragraphs[30], paragraphs[50] = paragraphs[20], paragraphs[20]
    report = report_on(path, paragraphs)
    found = next(copies for copies in report.copies if copies.kind == "paragraphs")
    assert (found.copies, found.times) == (2, 3)
    places = next(iter(report.copy_places.values()))
    text = path.read_bytes()
    first = text.index(paragraphs[20].encode())
    assert places == (Place(str(path), 41, first), Place(str(path), 61, text.index(paragraphs[20].encode(), first + 1)))
    finding = report.findings()[0]
    share = 2 * len(paragraphs[20]) / report.text_bytes
    assert finding.what == f"2 paragraphs are copies, {share:.1%} of the text"


def test_bytes_that_stop_training_come_first_unless_they_are_to_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes("\n\n".join(book(20) + book(20)).encode() + b"\n\xff\n")
    found = scan(path, encoding_errors="replace")
    strict = examine(found, tokenizers=CHEAP).findings()
    assert strict[0].what.startswith("invalid UTF-8, 1 at or after")
    replaced = examine(found, tokenizers=CHEAP, encoding_errors="replace").findings()
    assert "stands in the training text" in replaced[0].what
    assert sorted(finding.what for finding in strict) == sorted(finding.what for finding in replaced)


def test_a_few_trailing_spaces_are_no_finding_and_many_are(tmp_path: Path) -> None:
    paragraphs = book(300)
    paragraphs[7] += " "
    report = report_on(tmp_path / "book.txt", paragraphs)
    assert [trouble.count for trouble in report.troubles] == [1]
    assert report.findings() == []
    many = report_on(tmp_path / "book.txt", [text + " " for text in book(100)])
    assert [finding.what[:20] for finding in many.findings()] == ["trailing spaces, 100"]


def test_tokenizers_are_measured_on_what_is_held_out(tmp_path: Path) -> None:
    report = report_on(tmp_path / "book.txt", [*book(), "ä" * 9])  # which only the held-out part has
    by_name = {entry.tokenizer: entry for entry in report.compressions}
    assert by_name["bytes"].bytes_per_token == 1
    assert (by_name["chars"].vocab_size, by_name["chars"].bytes_per_token) == (257, 1)  # it had to spell them
    assert {baseline.name for baseline in report.baselines} >= {"bytes", "words", "5-gram", "gzip", "xz"}


def test_where_nothing_is_held_out_there_are_no_baselines_and_no_leaks(tmp_path: Path) -> None:
    report = report_on(tmp_path / "book.txt", book() + book(), validation_fraction=0.0)
    assert (report.baselines, report.overlap.windows, report.held_out) == ([], 0, "nothing")


def test_a_large_text_is_looked_at_in_part_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_MOST_TRAIN", 4000)
    monkeypatch.setattr(doctor, "MOST_BYTES", 5000)
    monkeypatch.setattr(doctor, "_MOST_VALIDATION", 1500)
    documents = [paragraph(seed) for seed in range(200)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"text": "{document}"}}\n' for document in documents))
    report = examine(scan(path, encoding_errors="replace"), tokenizers=CHEAP)
    assert report.held_out == "every 10th document"
    assert 4000 < report.repeat_bytes <= 5000
    assert 1000 < report.validation_looked_at <= 1700 < report.validation_bytes
    assert max(baseline.train_bytes for baseline in report.baselines) <= 4200
    assert report.overlap.shared == 0


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("longer", [None, 0, 1])
@pytest.mark.parametrize("length", [200, 500])  # words: of a long line only a part is looked for
def test_each_of_two_near_copies_is_shown_once_at_its_own_place(
    tmp_path: Path, end: str, longer: int | None, length: int
) -> None:
    path, paragraphs = tmp_path / "book.txt", book()
    words = paragraph(500, length).split()
    other = [*words, "more"] if longer is not None else [*words[:90], "another", *words[91:]]
    paragraphs[10], paragraphs[60] = map(" ".join, (other, words) if longer == 0 else (words, other))
    path.write_bytes((end * 2).join(paragraphs).encode())
    report = examine(scan(path, encoding_errors="replace"), tokenizers=CHEAP)
    left, right = report.near_passages
    text = path.read_bytes()
    starts = (text.index(paragraphs[10].encode()), text.rindex(paragraphs[60].encode()))
    assert [len(passage.places) for passage in report.near_passages] == [1, 1]
    assert (left.places[0].line, right.places[0].line) == (21, 121)
    for passage, start, number in zip(report.near_passages, starts, (10, 60), strict=True):
        assert start <= passage.places[0].byte < start + len(paragraphs[number])
    assert left.text != right.text
    assert ("another" if longer is None else "more") in (left if longer == 0 else right).text


def test_a_method_that_saw_less_than_all_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_MOST_TRAIN", 8000)
    documents = [paragraph(seed) for seed in range(100)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"text": "{document}"}}\n' for document in documents))
    report = examine(scan(path, encoding_errors="replace"), tokenizers=CHEAP)
    labels = {baseline.name: baseline.label for baseline in report.baselines}
    assert labels["gzip"] == "gzip"
    assert {labels["xz"], labels["5-gram"]} <= {f"{name} of {size} kB" for name in ("xz", "5-gram") for size in (7, 8)}
