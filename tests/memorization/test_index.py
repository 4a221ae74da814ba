"""Planted copies are found with their location and length, and nothing else is."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import bytes_ending_in
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.data.corpus import Corpus
from minigpt.memorization import index as index_module
from minigpt.memorization.index import MemorizationIndex, TrainingLocation
from minigpt.memorization.words import Extent
from minigpt.tokenizer.tokenizer import Tokenizer

Build = Callable[..., Corpus]


def sentence(start: int, length: int) -> str:
    """Words that each occur once: w17 w18 w19."""
    return " ".join(f"w{number}" for number in range(start, start + length))


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """A corpus of documents, without a validation part by default."""

    def make(*documents: str, fraction: float = 0, tokenizer: str | Tokenizer = "bytes") -> Corpus:
        source = tmp_path / "text.jsonl"
        source.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents), encoding="utf-8")
        return Corpus.build(source, tokenizer, cache=tmp_path / "cache", validation_fraction=fraction)

    return make


def brute_force(corpus: list[list[str]], words: list[str]) -> int:
    """The most consecutive words that occur in one of the documents."""
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


def test_a_planted_copy_is_found_with_its_location_and_length(build: Build) -> None:
    corpus = build(f"{sentence(0, 40)}\n{sentence(40, 40)}\n", f"alpha\n\nbeta\n{sentence(100, 30)}\n")
    measured = MemorizationIndex.build(corpus).measure(f"something new {sentence(102, 12)} and new again")
    run = measured.longest
    assert run is not None
    text = f"something new {sentence(102, 12)} and new again"
    assert text[run.start : run.end] == sentence(102, 12)
    assert (run.extent.words, run.occurrences) == (12, 1)
    assert MemorizationIndex.build(corpus).locate(run.position) == TrainingLocation(document=2, line=4)
    assert (measured.extent.words, measured.copied.words, measured.spans) == (17, 12, ((run.start, run.end),))
    assert measured.share == pytest.approx(12 / 17)


@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), min_size=1, max_size=3),
    st.lists(st.sampled_from("abcd"), max_size=12),
)
@settings(deadline=None, max_examples=60)
def test_the_longest_run_equals_that_of_brute_force(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[str]], words: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    source = folder / "text.jsonl"
    source.write_text("".join(json.dumps({"text": " ".join(document)}) + "\n" for document in documents))
    index = MemorizationIndex.build(Corpus.build(source, "bytes", cache=folder / "cache", validation_fraction=0))
    measured = index.measure(" ".join(words), min_words=2)
    longest = measured.longest
    assert (longest.extent.words if longest else 0) == brute_force(documents, words)
    inside = {
        place
        for start in range(len(words))
        for end in range(start + 2, len(words) + 1)
        if brute_force(documents, words[start:end]) == end - start
        for place in range(start, end)
    }
    assert measured.copied.words == len(inside)
    assert sum(len(" ".join(words)[start:end].split()) for start, end in measured.spans) == len(inside)


def test_white_space_does_not_matter_but_case_and_punctuation_do(build: Build) -> None:
    index = MemorizationIndex.build(build("The white whale,\nshe blows; thar\tshe blows now"))
    assert index.measure("The  white whale, she\n\nblows; thar she blows now").runs[0].extent.words == 9
    assert [run.extent.words for run in index.measure("the white whale, she Blows; thar she").runs] == [3, 2]
    assert [run.extent.words for run in index.measure("The white whale she blows;").runs] == [2, 2]


def test_a_part_of_a_word_is_not_a_copy(build: Build) -> None:
    index = MemorizationIndex.build(build("remember the harpooneers"))
    assert [run.extent.words for run in index.measure("member the harpoon").runs] == [1]
    assert index.measure("ember harpoon").longest is None


def test_words_with_other_characters_than_ascii_are_found_and_located(build: Build) -> None:
    text = "Père Noël — naïve 🐋 déjà vu: où ça?"
    index = MemorizationIndex.build(build(f"Zuerst\n{text}", "autre"))
    found = index.measure(f"🐋🐋 {text} fin").longest
    assert found is not None
    assert f"🐋🐋 {text} fin"[found.start : found.end] == text
    assert index.locate(found.position) == TrainingLocation(1, 2)


def test_scripts_without_spaces_are_measured_in_characters(build: Build) -> None:
    index = MemorizationIndex.build(build("我们在海上看见了一头白鲸。它很大。", "ปลาวาฬสีขาว"))
    measured = index.measure("昨天我们在海上看见了船。")
    longest = measured.longest
    assert longest is not None
    assert "昨天我们在海上看见了船。"[longest.start : longest.end] == "我们在海上看见了"
    assert (longest.extent, measured.extent) == (Extent(0, 8), Extent(0, 12))
    assert measured.share == 0  # eight characters are an ordinary phrase
    assert index.measure("ปลาวาฬ").runs[0].extent == Extent(0, len("ปลาวาฬ"))


JAPANESE = "朝起きると窓の外は雨だった。駅まで歩く間に靴が濡れて、電車の中ではずっと足が冷たかった。"


@pytest.mark.parametrize(("length", "share"), [(19, 0.0), (20, 20 / 22)])
def test_twenty_characters_are_a_long_run(build: Build, length: int, share: float) -> None:
    index = MemorizationIndex.build(build(JAPANESE))
    measured = index.measure(f"猫{JAPANESE[3 : 3 + length]}猫")
    assert measured.longest_extent == Extent(0, length)
    assert measured.share == pytest.approx(share)
    assert measured.figures()["longest_copied_unspaced"] == length


def test_a_run_of_words_and_characters_adds_both(build: Build) -> None:
    index = MemorizationIndex.build(build(f"{sentence(0, 4)} 朝起きると窓の外は雨だ {sentence(9, 9)}"))
    measured = index.measure(f"new {sentence(0, 4)} 朝起きると窓の外は雨 other")
    assert measured.longest_extent == Extent(4, 10)  # 4 + 10 / 2.5 = 8 words
    assert measured.share == pytest.approx(8 / 10)


def test_common_punctuation_counts_as_characters_only_beside_scripts_without_spaces(build: Build) -> None:
    index = MemorizationIndex.build(build("unrelated"))
    assert index.measure("他说：“你好……”，然后走了。").extent == Extent(0, 15)
    assert index.measure("Wait … “what” — he said 2024").extent == Extent(7, 0)
    assert index.measure("2024年にPython 3を").extent == Extent(3, 3)


def test_a_run_ends_at_the_end_of_a_document(build: Build) -> None:
    index = MemorizationIndex.build(build(sentence(0, 10), sentence(10, 10)))
    assert [run.extent.words for run in index.measure(sentence(5, 10)).runs] == [5, 5]
    assert index.measure("w9 <|endoftext|> w10").longest == index.measure("w9").longest


def test_the_name_of_the_end_of_text_token_does_not_matter(build: Build) -> None:
    documents = f"{sentence(0, 9)}\n{sentence(20, 9)}", f"{sentence(50, 9)}\n{sentence(70, 9)}"
    text = f"{sentence(25, 4)} {sentence(50, 4)} {sentence(71, 6)}"
    named, plain = (
        MemorizationIndex.build(build(*documents, tokenizer=each)) for each in (bytes_ending_in("</s>"), "bytes")
    )
    assert named.measure(text) == plain.measure(text)
    run = named.measure(text).longest
    assert run is not None
    assert named.locate(run.position) == TrainingLocation(document=2, line=2)


def test_a_text_shorter_than_a_long_run_has_a_longest_run_but_no_share(build: Build) -> None:
    index = MemorizationIndex.build(build(sentence(0, 40)))
    measured = index.measure(sentence(3, 5))
    assert (measured.longest.extent.words if measured.longest else 0, measured.share, measured.spans) == (5, 0, ())
    assert index.measure(sentence(3, 5), min_words=5).share == 1
    for empty in ("", " \n "):
        nothing = index.measure(empty)
        assert (nothing.extent.words, nothing.longest, nothing.share) == (0, None, 0)


def test_the_prompt_does_not_count_but_a_word_that_it_begins_does(build: Build) -> None:
    index = MemorizationIndex.build(build("Call me Ishmael. Some years ago never mind how long"))
    measured = index.measure("mael. Some years went", "Call me Ish")
    assert measured.extent.words == 4
    run = measured.longest
    assert run is not None
    assert (run.extent.words, run.start, run.end) == (3, 0, len("mael. Some years"))
    assert index.measure("", "Call me Ishmael. Some years").longest is None
    assert [run.extent.words for run in index.measure(" Some years", "Call me Ishmael.").runs] == [2]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300", "chars"])
def test_lines_and_documents_are_counted_across_blocks(
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
            assert (run.extent.words, index.locate(run.position)) == (5, TrainingLocation(number + 1, line + 1))


def test_a_large_text_is_indexed_in_evenly_spaced_blocks_that_no_run_crosses(
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
    assert whole.extent.words == 2000
    longest = index.measure(sentence(0, 2000)).longest
    assert longest is not None
    assert longest.extent.words < 60
    begin = found.index(False)  # after the first block
    second = found.index(True, begin)
    side_by_side = f"{sentence(begin - 5, 5)} {sentence(second, 5)}"
    assert [run.extent.words for run in index.measure(side_by_side).runs] == [5, 5]


def test_a_stored_index_gives_the_same_results(build: Build) -> None:
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


def test_a_damaged_or_stale_index_is_rebuilt(build: Build) -> None:
    corpus = build(sentence(0, 50))
    MemorizationIndex.open(corpus)
    (file,) = corpus.path.glob("copies*")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert MemorizationIndex.find(corpus) is None
    assert MemorizationIndex.open(corpus).measure(sentence(5, 9)).runs[0].extent.words == 9
    assert file.read_bytes() == whole
    file.write_bytes(whole.replace(corpus.fingerprint.encode(), b"0" * len(corpus.fingerprint)))
    assert MemorizationIndex.find(corpus) is None


def test_an_incomplete_index_is_not_stored(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_BLOCK", 64)
    corpus = build(sentence(0, 500))
    assert not MemorizationIndex.open(corpus, most_bytes=500).is_complete
    assert MemorizationIndex.find(corpus) is None
