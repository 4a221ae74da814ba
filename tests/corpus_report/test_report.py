"""The complete report, on texts with planted findings."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from minigpt.corpus_report import build_report as build_report_module
from minigpt.corpus_report import duplicates as duplicates_module
from minigpt.corpus_report.build_report import build_report
from minigpt.corpus_report.drawing import report_parts
from minigpt.corpus_report.locations import Location
from minigpt.corpus_report.report import Report
from minigpt.data.sources import scan
from minigpt.errors import DataError

SENTENCES = {
    "en": "It was the best of times, it was the worst of times, and there were those who had not been there. ",
    "de": "Der Mann ist nicht mit dem Hund auf den Berg gegangen, aber auch nicht nach Hause, und das war es. ",
}
WORDS = [f"{a}{b}{c}{d}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst" for d in "aeo"]
CHEAP = ("bytes", "chars")


def paragraph(seed: int, words: int = 40) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def book(n: int = 120) -> list[str]:
    return [paragraph(seed) for seed in range(n)]


def report_on(path: Path, paragraphs: list[str], **options: Any) -> Report:
    path.write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
    return build_report(scan(path, encoding_errors="replace"), tokenizers=CHEAP, **options)


def test_a_clean_text_has_no_findings(tmp_path: Path) -> None:
    report = report_on(tmp_path / "book.txt", book())
    assert report.findings() == []
    assert (report.repeat, report.overlap.shared, report.near_duplicates.duplicates, report.issues) == (None, 0, 0, [])
    size = (tmp_path / "book.txt").stat().st_size
    assert (report.text_bytes, report.characters, report.lines, report.documents) == (size, size, 239, 1)
    assert report.scripts == {"Latin": 1.0}
    assert report.held_out == "the end of each document"
    assert report.validation_bytes == report.validation_sample_bytes - 1 == pytest.approx(0.1 * size, rel=0.2)


def test_planted_leakage_is_found_at_both_locations_and_is_the_first_finding(tmp_path: Path) -> None:
    path, paragraphs = tmp_path / "book.txt", book()
    paragraphs[115] = paragraphs[10]  # the last twelfth is held out
    report = report_on(path, paragraphs)
    assert report.overlap_passage is not None
    text = path.read_bytes()
    first = text.index(paragraphs[10].encode())
    second = text.index(paragraphs[10].encode(), first + 1)
    for location in report.overlap_passage.locations:
        assert location.line == text[: location.byte].count(b"\n") + 1
    assert [location.byte for location in report.overlap_passage.locations] == pytest.approx([first, second], abs=2)
    assert report.overlap.length == pytest.approx(len(paragraphs[10]), abs=6)
    assert report.overlap.share == pytest.approx((len(paragraphs[10]) - 49) / report.validation_bytes, rel=0.05)
    assert "of the held-out text also occurs in the training text" in report.findings()[0].what
    assert report.repeat is not None
    assert report.repeat_passage is not None
    assert report.repeat_passage.locations == report.overlap_passage.locations


def test_planted_duplicates_are_counted_with_their_share_and_located(tmp_path: Path) -> None:
    path, paragraphs = tmp_path / "book.txt", book()
    paragraphs[30], paragraphs[50] = paragraphs[20], paragraphs[20]
    report = report_on(path, paragraphs)
    found = next(found for found in report.duplicates if found.kind == "paragraphs")
    assert (found.duplicates, found.occurrences) == (2, 3)
    text = path.read_bytes()
    first = text.index(paragraphs[20].encode())
    assert found.locations == (
        Location(str(path), 41, first),
        Location(str(path), 61, text.index(paragraphs[20].encode(), first + 1)),
    )
    finding = report.findings()[0]
    share = 2 * len(paragraphs[20]) / report.text_bytes
    assert finding.what == f"2 paragraphs are duplicates, {share:.1%} of the text"


def test_the_number_of_duplicates_of_a_large_text_is_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates_module, "_MOST_UNITS", 200)
    report = report_on(tmp_path / "book.txt", 2 * book(400))
    found = next(found for found in report.duplicates if found.kind == "paragraphs")
    assert found.sampled_fraction < 1
    assert found.units == 800
    assert found.duplicates == pytest.approx(400, rel=0.3)
    assert found.duplicate_bytes == pytest.approx(report.text_bytes / 2, rel=0.3)
    (finding,) = (each for each in report.findings() if "duplicates," in each.what)
    assert finding.what.startswith(f"about {found.duplicates:,} paragraphs are duplicates, ")
    shown = "\n".join(str(part) for part in report_parts(report))
    assert f"about {found.duplicates} of 800 paragraphs of 100 characters or more repeat another, estimated" in shown
    assert "; one occurs at least 2 times, at " in shown


@pytest.mark.parametrize("block", [500, 100_000])  # the first block is taken even if it is larger than the sample
def test_a_record_larger_than_a_sample_is_sampled_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    for name, size in (("BLOCK_SIZE", block), ("_MOST_TRAIN", 20_000), ("MOST_BYTES", 15_000)):
        monkeypatch.setattr(build_report_module, name, size)
    monkeypatch.setattr(build_report_module, "_MOST_VALIDATION", 2000)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "\n\n".join(book())}) + "\n")
    report = build_report(scan(path, encoding_errors="replace"), tokenizers=CHEAP)
    assert 14_000 < report.repeat_bytes <= 15_000 < report.text_bytes
    assert 1000 < report.validation_sample_bytes <= max(2000, block)
    assert 17_000 < max(baseline.train_bytes for baseline in report.baselines) <= max(20_000, block)
    assert report.validation_bytes > 2000
    assert all(0 < baseline.bits_per_byte < 9 for baseline in report.baselines)


def test_the_share_of_near_duplicates_is_that_of_the_long_documents(tmp_path: Path) -> None:
    short = [f"A short document, number {number}." for number in range(40)]
    long = [paragraph(seed) for seed in range(3)]
    documents = [*short, *long, f"{long[0]} more"]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"text": "{document}"}}\n' for document in documents))
    report = build_report(scan(path, encoding_errors="replace"), tokenizers=CHEAP)
    whats = [finding.what for finding in report.findings()]
    assert "25.0% of the long documents are near-duplicates of another" in whats


def test_progress_counts_bytes(tmp_path: Path) -> None:
    last: dict[str, tuple[int, int]] = {}

    def progress(stage: str, done: int, total: int) -> None:
        last[stage] = done, total

    report = report_on(tmp_path / "book.txt", ["Съешь ещё этих мягких французских булок"] * 99, progress=progress)
    for stage in ("finding duplicates", "splitting", "comparing the two parts"):
        assert last[stage] == (report.text_bytes, report.text_bytes), stage


def test_invalid_utf8_is_the_first_finding_unless_training_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes("\n\n".join(book(20) + book(20)).encode() + b"\n\xff\n")
    found = scan(path, encoding_errors="replace")
    strict = build_report(found, tokenizers=CHEAP).findings()
    assert strict[0].what.startswith("invalid bytes, 1 from ")
    replaced = build_report(found, tokenizers=CHEAP, encoding_errors="replace").findings()
    assert not replaced[0].what.startswith("invalid bytes")
    assert sorted(finding.what for finding in strict) == sorted(finding.what for finding in replaced)


def test_many_trailing_spaces_are_a_finding_and_a_few_are_not(tmp_path: Path) -> None:
    paragraphs = book(300)
    paragraphs[7] += " "
    report = report_on(tmp_path / "book.txt", paragraphs)
    assert [issue.count for issue in report.issues] == [1]
    assert report.findings() == []
    many = report_on(tmp_path / "book.txt", [text + " " for text in book(100)])
    assert [finding.what[:20] for finding in many.findings()] == ["trailing spaces, 100"]


def test_tokenizers_are_measured_on_the_held_out_text(tmp_path: Path) -> None:
    report = report_on(tmp_path / "book.txt", [*book(), "ä" * 9])  # only the held-out part has it
    by_name = {entry.tokenizer: entry for entry in report.compressions}
    assert by_name["bytes"].bytes_per_token == 1
    assert (by_name["chars"].vocab_size, by_name["chars"].bytes_per_token) == (257, 1)  # it falls back to bytes
    assert {baseline.name for baseline in report.baselines} >= {"bytes", "words", "5-gram", "gzip", "xz"}


def test_without_held_out_text_there_are_no_baselines_and_no_leakage(tmp_path: Path) -> None:
    report = report_on(tmp_path / "book.txt", book() + book(), validation_fraction=0.0)
    assert (report.baselines, report.overlap.windows, report.held_out) == ([], 0, "nothing")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("longer", [None, 0, 1])
@pytest.mark.parametrize("length", [200, 500])  # words; only a part of a long line is searched
def test_each_of_two_near_duplicates_has_its_own_location(
    tmp_path: Path, end: str, longer: int | None, length: int
) -> None:
    path, paragraphs = tmp_path / "book.txt", book()
    words = paragraph(500, length).split()
    other = [*words, "more"] if longer is not None else [*words[:90], "another", *words[91:]]
    paragraphs[10], paragraphs[60] = map(" ".join, (other, words) if longer == 0 else (words, other))
    path.write_bytes((end * 2).join(paragraphs).encode())
    report = build_report(scan(path, encoding_errors="replace"), tokenizers=CHEAP)
    left, right = report.near_duplicate_passages
    text = path.read_bytes()
    starts = (text.index(paragraphs[10].encode()), text.rindex(paragraphs[60].encode()))
    assert [len(passage.locations) for passage in report.near_duplicate_passages] == [1, 1]
    assert (left.locations[0].line, right.locations[0].line) == (21, 121)
    for passage, start, number in zip(report.near_duplicate_passages, starts, (10, 60), strict=True):
        assert passage.locations[0].byte in range(start, start + len(paragraphs[number]))
    assert left.text != right.text
    assert ("another" if longer is None else "more") in (left if longer == 0 else right).text


def test_a_text_that_changes_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, paragraphs = tmp_path / "book.txt", book(20)
    path.write_text("\n\n".join([*paragraphs, f"{paragraphs[3]} more"]) + "\n")
    find_examples = build_report_module.find_examples

    def after_a_change(*arguments: Any) -> Any:
        path.write_text(path.read_text().replace("more", "less"))
        return find_examples(*arguments)

    monkeypatch.setattr(build_report_module, "find_examples", after_a_change)
    with pytest.raises(DataError, match=r"book\.txt or another file changed while it was read; run the command again$"):
        build_report(scan(path), tokenizers=CHEAP)


def test_a_held_out_part_in_another_language_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "both.txt"
    path.write_text(f"{SENTENCES['en'] * 200}\n{SENTENCES['de'] * 200}", encoding="utf-8")
    finding = next(each for each in report_of(path).findings() if "kind" in each.what)
    assert finding.what.startswith(
        "the held-out text is of another kind than the training text: 100% in de (training text: 4"
    )
    assert "the validation loss says little about the rest" in finding.advice


def test_a_held_out_part_of_other_characters_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "figures.txt"
    path.write_text(f"{SENTENCES['en'] * 300}\n" + "1,234; 5,678\n" * 400)
    (difference, *_) = (each for each in report_of(path).held_out_differences if "digits" in each)
    assert difference == "62% digits (training text: 3%)"


def test_documents_that_alternate_between_languages_are_held_out_of_both(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [json.dumps({"text": SENTENCES[("en", "de")[number % 2]]}) + "\n" for number in range(800)]
    path.write_text("".join(rows))
    report = report_of(path)
    assert report.held_out_differences == ()
    assert report.languages == pytest.approx({"en": 0.5, "de": 0.5}, abs=0.02)


def report_of(path: Path) -> Report:
    return build_report(scan(path, encoding_errors="replace"), tokenizers=CHEAP)
