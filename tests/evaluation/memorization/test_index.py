"""The copy meter: planted copies are found where they stand, as long as they are, and nothing else is."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.data.corpus import Corpus
from minigpt.data.sources import scan
from minigpt.evaluation.memorization import index as index_module
from minigpt.evaluation.memorization.index import MemorizationIndex, TrainingLocation
from minigpt.evaluation.memorization.origins import Origin, document_origins
from minigpt.tokenizer.tokenizer import Tokenizer

Build = Callable[..., Corpus]


def sentence(start: int, length: int) -> str:
    """Words that each occur once: w17 w18 w19."""
    return " ".join(f"w{number}" for number in range(start, start + length))


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """A corpus of documents, nothing held out unless that is asked for."""

    def make(*documents: str, fraction: float = 0, tokenizer: str = "bytes") -> Corpus:
        source = tmp_path / "text.jsonl"
        source.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents), encoding="utf-8")
        return Corpus.build(source, tokenizer, cache=tmp_path / "cache", validation_fraction=fraction)

    return make


def brute_force(corpus: list[list[str]], words: list[str]) -> int:
    """The most words side by side that stand in one of the documents."""
    return max(
        (
            end - start
            for start in range(len(words))
            for end in range(start + 1, len(words) + 1)
            for document in corpus
            if any(document[at : at + end - start] == words[start:end] for at in range(len(document)))
        ),
        default=0,
    )


def test_a_planted_copy_is_found_at_its_place_with_its_length(build: Build) -> None:
    corpus = build(f"{sentence(0, 40)}\n{sentence(40, 40)}\n", f"alpha\n\nbeta\n{sentence(100, 30)}\n")
    copying = MemorizationIndex.build(corpus).measure(f"something new {sentence(102, 12)} and new again")
    run = copying.longest
    assert run is not None
    text = f"something new {sentence(102, 12)} and new again"
    assert text[run.start : run.end] == sentence(102, 12)
    assert (run.words, run.occurrences) == (12, 1)
    assert MemorizationIndex.build(corpus).locate(run.position) == TrainingLocation(document=2, line=4)
    assert (copying.words, copying.copied_words, copying.spans) == (17, 12, ((run.start, run.end),))
    assert copying.share == pytest.approx(12 / 17)


@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), min_size=1, max_size=3),
    st.lists(st.sampled_from("abcd"), max_size=12),
)
@settings(deadline=None, max_examples=60)
def test_the_longest_run_is_the_longest_common_stretch_of_words(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[str]], words: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    source = folder / "text.jsonl"
    source.write_text("".join(json.dumps({"text": " ".join(document)}) + "\n" for document in documents))
    index = MemorizationIndex.build(Corpus.build(source, "bytes", cache=folder / "cache", validation_fraction=0))
    copying = index.measure(" ".join(words), min_words=2)
    longest = copying.longest
    assert (longest.words if longest else 0) == brute_force(documents, words)
    inside = {
        place
        for start in range(len(words))
        for end in range(start + 2, len(words) + 1)
        if brute_force(documents, words[start:end]) == end - start
        for place in range(start, end)
    }
    assert copying.copied_words == len(inside)
    assert sum(len(" ".join(words)[start:end].split()) for start, end in copying.spans) == len(inside)


def test_white_space_is_no_difference_but_case_and_punctuation_are(build: Build) -> None:
    index = MemorizationIndex.build(build("The white whale,\nshe blows; thar\tshe blows now"))
    assert index.measure("The  white whale, she\n\nblows; thar she blows now").runs[0].words == 9
    assert [run.words for run in index.measure("the white whale, she Blows; thar she").runs] == [3, 2]
    assert [run.words for run in index.measure("The white whale she blows;").runs] == [2, 2]


def test_part_of_a_word_is_no_copy(build: Build) -> None:
    index = MemorizationIndex.build(build("remember the harpooneers"))
    assert [run.words for run in index.measure("member the harpoon").runs] == [1]
    assert index.measure("ember harpoon").longest is None


def test_characters_beyond_ascii_are_words_and_places_like_any_other(build: Build) -> None:
    text = "Père Noël — naïve 🐋 déjà vu: où ça?"
    index = MemorizationIndex.build(build(f"Zuerst\n{text}", "autre"))
    found = index.measure(f"🐋🐋 {text} fin").longest
    assert found is not None
    assert f"🐋🐋 {text} fin"[found.start : found.end] == text
    assert index.locate(found.position) == TrainingLocation(1, 2)


def test_where_no_spaces_stand_between_words_each_character_is_one(build: Build) -> None:
    index = MemorizationIndex.build(build("我们在海上看见了一头白鲸。它很大。", "ปลาวาฬสีขาว"))
    found = index.measure("昨天我们在海上看见了船。")
    longest = found.longest
    assert longest is not None
    assert "昨天我们在海上看见了船。"[longest.start : longest.end] == "我们在海上看见了"
    assert longest.words == 8
    assert index.measure("ปลาวาฬ").runs[0].words == len("ปลาวาฬ")


def test_a_run_does_not_go_on_from_one_document_into_the_next(build: Build) -> None:
    index = MemorizationIndex.build(build(sentence(0, 10), sentence(10, 10)))
    assert [run.words for run in index.measure(sentence(5, 10)).runs] == [5, 5]
    assert index.measure("w9 <|endoftext|> w10").longest == index.measure("w9").longest


def test_overlapping_runs_are_counted_once(build: Build) -> None:
    index = MemorizationIndex.build(build(f"{sentence(0, 12)} x {sentence(8, 12)}"))
    copying = index.measure(f"new {sentence(0, 20)} new", min_words=8)
    assert [(run.words, run.start) for run in copying.runs] == [(12, 4), (12, 4 + len(sentence(0, 8)) + 1)]
    assert copying.copied_words == 20
    assert copying.spans == ((4, 4 + len(sentence(0, 20))),)


def test_two_long_runs_side_by_side_are_one_stretch_of_the_text(build: Build) -> None:
    index = MemorizationIndex.build(build(sentence(0, 9), sentence(50, 9)))
    copying = index.measure(f"{sentence(0, 9)} {sentence(50, 9)}", min_words=8)
    assert copying.copied_words == 18
    assert len(copying.spans) == 1
    apart = index.measure(f"{sentence(0, 9)} new {sentence(50, 9)}", min_words=8)
    assert len(apart.spans) == 2


def test_a_text_shorter_than_a_long_run_has_a_longest_run_and_no_share(build: Build) -> None:
    index = MemorizationIndex.build(build(sentence(0, 40)))
    copying = index.measure(sentence(3, 5))
    assert (copying.longest.words if copying.longest else 0, copying.share, copying.spans) == (5, 0, ())
    assert index.measure(sentence(3, 5), min_words=5).share == 1
    for empty in ("", " \n "):
        nothing = index.measure(empty)
        assert (nothing.words, nothing.longest, nothing.share) == (0, None, 0)


def test_the_prompt_does_not_count_and_a_word_it_begins_does(build: Build) -> None:
    index = MemorizationIndex.build(build("Call me Ishmael. Some years ago never mind how long"))
    copying = index.measure("mael. Some years went", "Call me Ish")
    assert copying.words == 4
    run = copying.longest
    assert run is not None
    assert (run.words, run.start, run.end) == (3, 0, len("mael. Some years"))
    assert index.measure("", "Call me Ishmael. Some years").longest is None
    assert [run.words for run in index.measure(" Some years", "Call me Ishmael.").runs] == [2]


def test_how_often_a_run_stands_in_the_text_is_counted(build: Build) -> None:
    index = MemorizationIndex.build(build("a b c x a b c y a b"))
    assert [(run.words, run.occurrences) for run in index.measure("a b c").runs] == [(3, 2)]
    assert [(run.words, run.occurrences) for run in index.measure("a b").runs] == [(2, 3)]


def test_what_is_held_out_is_no_training_text(build: Build) -> None:
    text = "\n".join(sentence(100 * line, 10) for line in range(100))
    index = MemorizationIndex.build(build(text, fraction=0.2))
    longest = index.measure(sentence(0, 10)).longest
    assert longest is not None
    assert longest.words == 10
    assert index.measure(sentence(9900, 10)).longest is None


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300", "chars"])
def test_lines_and_documents_are_right_across_blocks(
    build: Build, monkeypatch: pytest.MonkeyPatch, tokenizer: str
) -> None:
    monkeypatch.setattr(index_module, "_BLOCK", 64)
    documents = [
        "\n".join(sentence(1000 * number + 10 * line, 10) for line in range(number + 5)) for number in range(6)
    ]
    index = MemorizationIndex.build(build(*documents, tokenizer=tokenizer))
    assert len(index.blocks) > 10
    for number in range(6):
        for line in range(number + 5):
            run = index.measure(sentence(1000 * number + 10 * line + 3, 5)).longest
            assert run is not None
            assert (run.words, index.locate(run.position)) == (5, TrainingLocation(number + 1, line + 1))


def test_of_a_large_text_blocks_spread_evenly_are_indexed_and_no_run_crosses_from_one_to_another(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_BLOCK", 128)
    corpus = build(sentence(0, 2000))
    index = MemorizationIndex.build(corpus, most_bytes=corpus.train_bytes // 4)
    assert not index.is_complete
    assert 0.15 < index.indexed_bytes / corpus.train_bytes < 0.3
    found = [bool(index.measure(f"w{number}").runs) for number in range(2000)]
    assert all(any(found[start : start + 400]) for start in range(0, 2000, 400))
    whole = MemorizationIndex.build(corpus).measure(sentence(0, 2000)).longest
    assert whole is not None
    assert whole.words == 2000
    longest = index.measure(sentence(0, 2000)).longest
    assert longest is not None
    assert longest.words < 60
    begin = found.index(False)  # after the first block
    second = found.index(True, begin)
    side_by_side = f"{sentence(begin - 5, 5)} {sentence(second, 5)}"
    assert [run.words for run in index.measure(side_by_side).runs] == [5, 5]


def test_an_index_comes_back_from_disk_as_it_was(build: Build) -> None:
    corpus = build(sentence(0, 50), "我们 naïve\nzwei", fraction=0)
    built = MemorizationIndex.open(corpus)
    stored = MemorizationIndex.find(corpus)
    assert stored is not None
    text = f"{sentence(7, 9)} 我们 naïve zwei"
    assert stored.measure(text) == built.measure(text)
    assert [stored.locate(run.position) for run in stored.measure(text).runs] == [
        TrainingLocation(1, 1),
        TrainingLocation(2, 1),
    ]


def test_a_damaged_or_foreign_index_is_built_again(build: Build) -> None:
    corpus = build(sentence(0, 50))
    MemorizationIndex.open(corpus)
    (file,) = corpus.path.glob("copies*")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert MemorizationIndex.find(corpus) is None
    assert MemorizationIndex.open(corpus).measure(sentence(5, 9)).runs[0].words == 9
    assert file.read_bytes() == whole
    file.write_bytes(whole.replace(corpus.fingerprint.encode(), b"0" * len(corpus.fingerprint)))
    assert MemorizationIndex.find(corpus) is None


def test_part_of_a_text_leaves_no_index_on_disk(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_BLOCK", 64)
    corpus = build(sentence(0, 500))
    assert not MemorizationIndex.open(corpus, most_bytes=500).is_complete
    assert MemorizationIndex.find(corpus) is None


def test_every_training_document_is_known_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one <|endoftext|>  <|endoftext|> two")
    (tmp_path / "b.txt").write_text("three")
    (tmp_path / "c.jsonl").write_text('{"text": "four"}\n{"text": "five"}\n')
    names = [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.jsonl")]
    expected = [Origin(names[0], 1), Origin(names[0], 2), Origin(names[1], None), Origin(names[2], 1),
                Origin(names[2], 2)]  # fmt: skip
    assert document_origins(scan(names), 0) == expected
    assert document_origins(scan(names), 0.1) == expected  # ends are held out, so all have their beginning
    assert document_origins(scan(names[1]), 0.1) == [Origin(names[1], None)]


def test_documents_that_are_held_out_are_left_out_of_the_origins(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"text": sentence(100 * row, 5)}) + "\n" for row in range(40)))
    corpus = Corpus.build(source, Tokenizer.named("bytes"), cache=tmp_path / "cache", validation_fraction=0.25)
    origins = document_origins(scan(source), corpus.validation_fraction)
    assert [origin.document for origin in origins] == [row + 1 for row in range(40) if row % 4 != 3]
    index = MemorizationIndex.build(corpus)
    run = index.measure(sentence(1800, 5)).longest
    assert run is not None
    assert origins[index.locate(run.position).document - 1].document == 19
    assert index.measure(sentence(1900, 5)).longest is None
