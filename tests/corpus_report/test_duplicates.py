"""Copies planted into texts, and found, in as much memory as there is meant to be."""

import random

import pytest

from minigpt.corpus_report import duplicates
from minigpt.corpus_report.duplicates import Copies, find_copies, first_difference, texts_of
from minigpt.data.sources import Piece

WORDS = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"]


def paragraph(seed: int, words: int = 40) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def whole(*documents: str) -> list[Piece]:
    return [(document, True) for document in documents]


def by_kind(found: list[Copies]) -> dict[str, Copies]:
    return {copies.kind: copies for copies in found}


def test_a_text_without_copies_has_none() -> None:
    copies, near = find_copies(whole("\n\n".join(map(paragraph, range(30)))), 1)
    assert [found.copies for found in copies] == [0, 0, 0]
    assert [found.units for found in copies] == [1, 30, 30]
    assert (near.units, near.copies, near.examples) == (30, 0, None)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_paragraphs_that_stand_again_are_counted_with_their_bytes(end: str) -> None:
    order = [0, 1, 2, 0, 3, 0, 2]
    copies, near = find_copies(whole((end * 2).join(map(paragraph, order))), 1)
    found = by_kind(copies)["paragraphs"]
    assert (found.units, found.copies, found.times, found.looked_at) == (7, 3, 3, 1.0)
    assert found.copied_bytes == 2 * len(paragraph(0)) + len(paragraph(2))
    assert paragraph(0).startswith(found.example)
    assert near.copies == 0  # word for word is no near copy


def test_lines_and_documents_are_counted_apart_from_paragraphs() -> None:
    line = "a line of text that is longer than forty characters"
    first = f"{paragraph(1)}\n{line}"
    copies, _ = find_copies(whole(first, f"{line}\n{paragraph(2)}", first), 3)
    assert {kind: found.copies for kind, found in by_kind(copies).items()} == {
        "documents": 1, "paragraphs": 1, "lines": 3,
    }  # fmt: skip


def test_what_is_rightly_the_same_is_no_copy() -> None:
    copies, _ = find_copies(whole("\n\n".join(f"Chapter {i % 3}\n\n{paragraph(i)}" for i in range(9))), 1)
    assert [found.copies for found in copies] == [0, 0, 0]


def test_the_same_document_in_other_pieces_is_the_same() -> None:
    text = f"{paragraph(1)}\r\n\r\n{paragraph(2)}\r\n"
    pieces: list[Piece] = [(text, True), *((char, False) for char in text), ("", True)]
    copies, _ = find_copies(pieces, 2)
    assert by_kind(copies)["documents"].copies == 1
    assert by_kind(copies)["paragraphs"].copies == 2


def test_a_paragraph_with_a_few_other_words_is_a_near_copy_and_one_with_many_is_none() -> None:
    words = paragraph(100, 200).split()
    few, many = list(words), list(words)
    few[50], few[150] = "another", "word"
    many[::7] = ["other"] * len(many[::7])
    texts = [paragraph(seed, 200) for seed in range(50)]
    texts[10], texts[20], texts[30] = " ".join(words), " ".join(few), " ".join(many)
    _, near = find_copies(whole("\n\n".join(texts)), 1)
    assert near.copies == 1
    assert texts_of(whole("\n\n".join(texts)), near) == (texts[10], texts[20])
    left, right = first_difference(texts[10], texts[20])
    assert left.words == f"… {' '.join(words[44:60])} …"
    assert right.words == f"… {' '.join(few[44:60])} …"
    shingles = [{tuple(text[i : i + 5]) for i in range(196)} for text in (words, few)]
    jaccard = len(shingles[0] & shingles[1]) / len(shingles[0] | shingles[1])
    assert near.similarity == pytest.approx(jaccard, abs=0.12)


def test_of_many_documents_whole_ones_are_compared() -> None:
    documents = [f"{paragraph(2 * i)}\n\n{paragraph(2 * i + 1)}" for i in range(25)]
    documents.append(f"{documents[3]} and more")
    _, near = find_copies(whole(*documents), len(documents))
    assert (near.kind, near.units, near.copies) == ("documents", 26, 1)


def test_memory_is_bounded_and_the_shares_still_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_MOST_KEPT", 200)
    monkeypatch.setattr(duplicates, "_MOST_SIGNATURES", 200)
    texts = [paragraph(seed, 30) for seed in range(2000)]
    texts += texts[:1000]  # a third are copies
    copies, near = find_copies(whole("\n\n".join(texts)), 1)
    found = by_kind(copies)["paragraphs"]
    assert found.looked_at in (1 / 16, 1 / 8)
    assert found.copies / found.units == pytest.approx(1 / 3, abs=0.08)
    assert found.units / found.looked_at == pytest.approx(3000, rel=0.25)
    assert near.looked_at < 1
    assert near.units <= 200


def test_a_difference_is_shown_with_its_line_and_at_an_end_too() -> None:
    left, right = first_difference("one two\nthree four\nfive", "one  two\nthree  for\nfive")
    assert (left.line, right.line) == ("three four", "three  for")
    left, right = first_difference("one two\nthree", "one two\nthree four")
    assert (left.line, right.line) == ("three", "three four")
    assert (left.words, right.words) == ("one two three", "one two three four")
    assert first_difference("one two", "one\ntwo")[0].words == "one two"
