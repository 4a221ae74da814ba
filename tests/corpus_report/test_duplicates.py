"""Planted duplicates and near-duplicates are found, in bounded memory."""

import random

import pytest

from minigpt.corpus_report import duplicates, near_duplicates
from minigpt.corpus_report.duplicates import DuplicateStats, find_duplicates, find_examples
from minigpt.corpus_report.near_duplicates import first_difference
from minigpt.data.sources import Piece

WORDS = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"]


def paragraph(seed: int, words: int = 40) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def pieces_of(*documents: str) -> list[Piece]:
    return [(document, True) for document in documents]


def by_kind(found: list[DuplicateStats]) -> dict[str, DuplicateStats]:
    return {stats.kind: stats for stats in found}


def test_a_text_without_duplicates_has_none() -> None:
    counted, near = find_duplicates(pieces_of("\n\n".join(map(paragraph, range(30)))), 1)
    assert [stats.duplicates for stats in counted] == [0, 0, 0]
    assert [stats.units for stats in counted] == [1, 30, 30]
    assert (near.units, near.duplicates, near.examples) == (30, 0, ())


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_repeated_paragraphs_are_counted_with_their_bytes(end: str) -> None:
    order = [0, 1, 2, 0, 3, 0, 2]
    text = pieces_of((end * 2).join(map(paragraph, order)))
    counted, near = find_duplicates(text, 1)
    found = by_kind(counted)["paragraphs"]
    assert (found.units, found.duplicates, found.occurrences, found.sampled_fraction) == (7, 3, 3, 1.0)
    assert found.duplicate_bytes == 2 * len(paragraph(0)) + len(paragraph(2))
    assert found.example_hash is not None
    assert find_examples(text, {found.example_hash}) == {found.example_hash: paragraph(0)}
    assert near.duplicates == 0  # an exact duplicate is not a near-duplicate


def test_paragraphs_without_spaces_are_near_duplicates_by_their_characters() -> None:
    kana = "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをん"
    paragraphs = ["".join(random.Random(seed).choices(kana, k=150)) for seed in range(30)]
    changed = paragraphs[3][:80] + "猫" + paragraphs[3][81:]
    text = pieces_of("\n\n".join([*paragraphs, changed]))
    _, near = find_duplicates(text, 1)
    assert (near.units, near.duplicates) == (31, 1)
    pair = find_examples(text, near.examples)
    shown = {excerpt.words for excerpt in first_difference(*pair.values())}
    assert shown == {f"… {paragraphs[3][74:90]} …", f"… {changed[74:90]} …"}


def test_lines_and_documents_are_counted_separately_from_paragraphs() -> None:
    line = "a line of text that is longer than forty characters"
    first = f"{paragraph(1)}\n{line}"
    counted, _ = find_duplicates(pieces_of(first, f"{line}\n{paragraph(2)}", first), 3)
    assert {kind: stats.duplicates for kind, stats in by_kind(counted).items()} == {
        "documents": 1, "paragraphs": 1, "lines": 3,
    }  # fmt: skip


def test_short_lines_such_as_headings_are_not_duplicates() -> None:
    counted, _ = find_duplicates(pieces_of("\n\n".join(f"Chapter {i % 3}\n\n{paragraph(i)}" for i in range(9))), 1)
    assert [stats.duplicates for stats in counted] == [0, 0, 0]


def test_a_document_in_other_pieces_is_a_duplicate() -> None:
    text = f"{paragraph(1)}\r\n\r\n{paragraph(2)}\r\n"
    pieces: list[Piece] = [(text, True), *((char, False) for char in text), ("", True)]
    counted, _ = find_duplicates(pieces, 2)
    assert by_kind(counted)["documents"].duplicates == 1
    assert by_kind(counted)["paragraphs"].duplicates == 2


def test_a_paragraph_with_a_few_changed_words_is_a_near_duplicate_and_one_with_many_is_not() -> None:
    words = paragraph(100, 200).split()
    few, many = list(words), list(words)
    few[50], few[150] = "another", "word"
    many[::7] = ["other"] * len(many[::7])
    texts = [paragraph(seed, 200) for seed in range(50)]
    texts[10], texts[20], texts[30] = " ".join(words), " ".join(few), " ".join(many)
    _, near = find_duplicates(pieces_of("\n\n".join(texts)), 1)
    assert near.duplicates == 1
    assert list(find_examples(pieces_of("\n\n".join(texts)), near.examples).values()) == [texts[10], texts[20]]
    left, right = first_difference(texts[10], texts[20])
    assert left.words == f"… {' '.join(words[44:60])} …"
    assert right.words == f"… {' '.join(few[44:60])} …"
    shingles = [{tuple(text[i : i + 5]) for i in range(196)} for text in (words, few)]
    jaccard = len(shingles[0] & shingles[1]) / len(shingles[0] | shingles[1])
    assert near.similarity == pytest.approx(jaccard, abs=0.12)


def test_with_many_documents_the_documents_are_compared() -> None:
    documents = [f"{paragraph(2 * i)}\n\n{paragraph(2 * i + 1)}" for i in range(25)]
    documents.append(f"{documents[3]} and more")
    _, near = find_duplicates(pieces_of(*documents), len(documents))
    assert (near.kind, near.units, near.duplicates) == ("documents", 26, 1)


def test_samples_in_bounded_memory_have_the_same_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_MOST_UNITS", 400)
    monkeypatch.setattr(near_duplicates, "_MOST_SIGNATURES", 200)
    texts = [paragraph(seed, 30) for seed in range(2000)]
    texts += texts[:1000]  # a third are duplicates
    counted, near = find_duplicates(pieces_of("\n\n".join(texts)), 1)
    found = by_kind(counted)["paragraphs"]
    assert found.sampled_fraction in (1 / 16, 1 / 8, 1 / 4)
    assert found.units == 3000
    assert found.duplicates == pytest.approx(1000, rel=0.25)
    assert found.duplicate_bytes == pytest.approx(sum(map(len, texts[:1000])), rel=0.25)
    assert near.sampled_fraction < 1
    assert near.units <= 200


@pytest.mark.parametrize("seed", range(4))  # half of the hashes are in a sample
def test_one_paragraph_that_is_most_of_a_text_is_counted_in_or_out_of_the_sample(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(duplicates, "_MOST_UNITS", 100)
    repeated = paragraph(10_000 + seed)
    texts = [text for number in range(600) for text in (paragraph(number), *[repeated] * 3)]
    counted, _ = find_duplicates(pieces_of("\n\n".join(texts)), 1)
    found = by_kind(counted)["paragraphs"]
    assert found.sampled_fraction < 1
    assert (found.units, found.duplicates, found.occurrences) == (2400, 1799, 1800)
    assert found.duplicate_bytes == 1799 * len(repeated)


def test_estimates_are_at_most_all_units_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_MOST_UNITS", 20)
    for seed in range(20):
        texts = [paragraph(1000 * seed + number) for number in range(60)] + [paragraph(1000 * seed, 200)] * 30
        counted, _ = find_duplicates(pieces_of("\n\n".join(texts)), 1)
        found = by_kind(counted)["paragraphs"]
        assert found.duplicates <= found.units == 90
        assert found.duplicate_bytes <= sum(map(len, texts))


def test_a_difference_is_shown_with_its_line_also_at_the_end() -> None:
    left, right = first_difference("one two\nthree four\nfive", "one  two\nthree  for\nfive")
    assert (left.line, right.line) == ("three four", "three  for")
    left, right = first_difference("one two\nthree", "one two\nthree four")
    assert (left.line, right.line) == ("three", "three four")
    assert (left.words, right.words) == ("one two three", "one two three four")
    assert first_difference("one two", "one\ntwo")[0].words == "one two"
