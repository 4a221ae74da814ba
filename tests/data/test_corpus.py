"""The corpus: its tokens are those of the text, its validation split, and its cache."""

import errno
import json
import re
import shutil
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.data import corpus_cache, sources, token_writer
from minigpt.data.corpus import Corpus
from minigpt.data.sources import scan
from minigpt.data.split import ValidationSplit
from minigpt.errors import ConfigError, DataError
from minigpt.tokenizer.tokenizer import Tokenizer

END = "<|endoftext|>"
STORY = "".join(f"Line {n} of the story, which goes on — and on — for a while.\n" for n in range(400))
GPT2 = Tokenizer.named("gpt2")


@pytest.fixture
def build(tmp_path):
    """Builds the corpus of some texts, one file each, in a temporary cache."""

    def build(*texts, tokenizer="bytes", **options):
        paths = []
        for number, text in enumerate(texts):
            paths.append(tmp_path / f"{number}.txt")
            paths[-1].write_bytes(text.encode())
        return Corpus.build(paths, tokenizer, **{"cache": tmp_path / "cache"} | options)

    return build


def texts_of(corpus):
    """The text of both parts, with end-of-text tokens as literals."""
    return corpus.tokenizer.decode(corpus.train), corpus.tokenizer.decode(corpus.validation)


def test_the_tokens_are_those_of_the_text_and_every_document_ends_with_end_of_text(build):
    corpus = build("one", f"two{END}three", tokenizer=GPT2, validation_fraction=0)
    expected = [id for text in ("one", "two", "three") for id in [*GPT2.encode(text), GPT2.end_of_text]]
    assert corpus.train.tolist() == expected
    assert (corpus.train_bytes, corpus.validation_bytes, corpus.n_documents) == (11, 0, 3)
    assert (len(corpus.validation), corpus.held_out) == (0, "nothing")
    assert isinstance(corpus.train, np.memmap)


def test_a_cached_corpus_has_the_tokenizer_that_was_given(build):
    build("one", tokenizer=GPT2)
    again = build("one", tokenizer=GPT2.with_end_ids([198]).with_chat_template("template"))
    assert (again.tokenizer.end_ids, again.tokenizer.chat_template) == ((50256, 198), "template")
    assert build("one", tokenizer=GPT2).tokenizer.end_ids == (50256,)


PIECES = [*" \n\t\r'!1aé中\u00a0\u2028\u0085\x1c", " the", "'s", "   ", "\n\n", END, "<|", "endoftext|>", "x" * 40]


@given(st.lists(st.sampled_from(PIECES)).map("".join), st.integers(1, 30), st.integers(1, 30))
@settings(deadline=None, max_examples=100)
def test_no_token_depends_on_where_blocks_and_chunks_end(tmp_path_factory, text, block, chunk):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.txt").write_bytes(("x" + text).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK_SIZE", block)
        patch.setattr(token_writer, "CHUNK_SIZE", chunk)
        patch.setattr(token_writer, "_MAX_CHUNK", 1000)
        found = scan([folder / "a.txt"])
        parts = ValidationSplit.plan(found, 0).apply(found.pieces())
        token_writer.write_tokens(parts, GPT2, folder, lambda text_bytes: None)
    kept = [document for document in ("x" + text).split(END) if document.strip()]
    tokens = np.fromfile(folder / "train.bin", dtype="<u2").tolist()
    assert tokens == [id for document in kept for id in [*GPT2.encode(document), GPT2.end_of_text]]


def test_a_long_text_without_a_place_to_cut_is_cut_anyway_to_bound_memory(build, monkeypatch):
    monkeypatch.setattr(token_writer, "CHUNK_SIZE", 10)
    monkeypatch.setattr(sources, "BLOCK_SIZE", 7)
    text = "abcdefghij" * 100
    assert max(len(chunk) for _, chunk in token_writer.chunks([("train", piece) for piece in text])) == 160
    assert texts_of(build(text, tokenizer=GPT2, validation_fraction=0))[0] == text + END


def test_a_vocabulary_of_more_than_65536_tokens_is_stored_completely(build):
    every = [chr(code) for code in range(0x4E00, 0x4E00 + 70_000) if not 0xD800 <= code <= 0xDFFF]
    tokenizer = Tokenizer.train(every, "chars")
    assert tokenizer.vocab_size > 2**16
    corpus = build(every[-1] + every[0], tokenizer=tokenizer, validation_fraction=0)
    assert corpus.train.tolist() == [tokenizer.vocab_size - 2, 256, tokenizer.end_of_text]


@given(
    st.lists(st.sampled_from(["word ", "\n", "é", "中", "x" * 30, " "]), min_size=1, max_size=80).map("".join),
    st.integers(1, 25),
    st.integers(1, 40),
    st.sampled_from([None, 0.0, 0.1, 0.5, 0.9]),
)
@settings(deadline=None, max_examples=50)
def test_the_two_parts_make_up_the_text_and_never_overlap(tmp_path_factory, text, copies, block, fraction):
    folder = tmp_path_factory.mktemp("corpus")
    documents = [f"{number}:{text}" for number in range(copies)]
    (folder / "a.txt").write_bytes(END.join(documents).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK_SIZE", block)
        corpus = Corpus.build([folder / "a.txt"], "bytes", cache=folder, validation_fraction=fraction)
    train, validation = (part.split(END)[:-1] for part in texts_of(corpus))
    if corpus.held_out == "the end of each document":
        tails = iter(validation)
        rebuilt = [head if head == whole else head + next(tails) for head, whole in zip(train, documents, strict=True)]
        assert rebuilt == documents
        assert next(tails, None) is None
    else:
        assert sorted(train + validation) == sorted(documents)
    assert all(train)
    assert all(validation)
    assert corpus.train_bytes == sum(len(part.encode()) for part in train)
    assert corpus.validation_bytes == sum(len(part.encode()) for part in validation)
    for part in (corpus.train, corpus.validation):
        assert len(part) == 0 or part[-1] == corpus.tokenizer.end_of_text


def test_of_few_documents_the_ends_are_held_out_from_the_start_of_a_line(build):
    corpus = build(STORY, STORY.upper())
    assert corpus.held_out == "the end of each document"
    train, validation = texts_of(corpus)
    assert [part.startswith(("Line 36", "LINE 36")) for part in validation.split(END)] == [True, True, False]
    assert train.count("\n" + END) == 2
    assert 0.08 < corpus.validation_bytes / (corpus.train_bytes + corpus.validation_bytes) <= 0.1


def test_a_text_without_lines_is_cut_before_a_word(build):
    train, validation = texts_of(build("words and words " * 50))
    assert validation.startswith((" words", " and"))
    assert not train.endswith(" " + END)


def held_out_numbers(corpus):
    return [int(number) for number in re.findall(rf"(\d+){re.escape(END)}", texts_of(corpus)[1])]


def test_of_many_documents_one_of_every_ten_is_held_out(build):
    documents = [f"document {number}" for number in range(45)]
    corpus = build(END.join(documents))
    assert corpus.held_out == "one document of every 10, at random"
    held_out = held_out_numbers(corpus)
    assert [number // 10 for number in held_out][:4] == [0, 1, 2, 3]
    assert held_out == held_out_numbers(build(END.join(documents[:44]) + END + "a 44"))  # of other words


def test_a_small_fraction_of_many_documents_takes_their_ends_instead_of_a_single_document(build):
    corpus = build(END.join([STORY] * 30), validation_fraction=0.01)
    assert corpus.held_out == "the end of each document"
    assert 0.005 < corpus.validation_bytes / (corpus.train_bytes + corpus.validation_bytes) <= 0.011


def test_of_very_many_documents_whole_ones_are_held_out_even_for_a_tiny_fraction(build, monkeypatch):
    corpus = build(END.join(f"document {number}" for number in range(5000)), validation_fraction=1e-6)
    assert corpus.held_out == "one document of every 2,500, at random"
    assert [number // 2500 for number in held_out_numbers(corpus)] == [0, 1]


def test_a_tenth_is_held_out_but_at_most_two_megabytes(tmp_path):
    (tmp_path / "a.txt").write_text(STORY)
    found = scan([tmp_path / "a.txt"])
    assert ValidationSplit.plan(found).fraction == 0.1
    assert ValidationSplit.plan(replace(found, text_bytes=10**9)).fraction == 0.002


@pytest.mark.parametrize("text", ["ab", "abcdefgh", "To be, or not to be: that is\n", STORY[:1024], "a\n" * 3])
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_a_tiny_text_has_tokens_in_both_parts_or_nothing_held_out(build, text, tokenizer):
    corpus = build(text, tokenizer=tokenizer)
    assert len(corpus.train) >= 2
    assert (len(corpus.validation) >= 2) == (corpus.held_out != "nothing") == (len(text) > 5)
    assert corpus.train_bytes + corpus.validation_bytes == len(text.encode())


@pytest.mark.parametrize("fraction", [-0.1, 1, 1.5, float("nan")])
def test_a_fraction_out_of_bounds_is_refused(build, fraction):
    with pytest.raises(ConfigError, match=r"validation_fraction \(.*\) must be at least 0 and below 1"):
        build("text", validation_fraction=fraction)


def test_a_tokenizer_is_trained_on_the_training_part_alone(build):
    assert "é" not in build("a" * 900 + "é" * 50, tokenizer="chars").tokenizer.characters
    assert "é" in build("é" * 50 + "a" * 900, tokenizer="chars").tokenizer.characters
    bpe = build("abc " * 900 + "xyz " * 100, tokenizer="bpe:300").tokenizer
    assert (b"a", b"b") in bpe.merges
    assert not any(b"x" in left + right for left, right in bpe.merges)


def test_merges_are_trained_on_a_sample_spread_over_the_text(build, monkeypatch):
    monkeypatch.setattr(corpus_cache, "TRAINING_SAMPLE", 4000)
    monkeypatch.setattr(corpus_cache, "_TRAINING_CHUNK", 100)
    read = []
    train = Tokenizer.train
    monkeypatch.setattr(Tokenizer, "train", lambda texts, spec: train(read.extend(texts) or read, spec))
    build(STORY, tokenizer="bpe:300", validation_fraction=0)
    assert 3000 < sum(map(len, read)) <= 4200
    assert any(text.startswith("Line 1") for text in "".join(read[: len(read) // 4]).split("\n"))
    assert "Line 39" in "".join(read[-10:])


def test_the_second_build_comes_from_the_cache(build, monkeypatch):
    first = build(STORY, tokenizer="bpe:300")
    monkeypatch.setattr(corpus_cache, "write_tokens", None)
    monkeypatch.setattr(Tokenizer, "train", None)
    second = build(STORY, tokenizer="bpe:300")
    assert second.path == first.path == Corpus.load(first.path).path
    assert second.train.tolist() == first.train.tolist()
    # A resumed run passes the trained tokenizer and finds the same tokens.
    assert build(STORY, tokenizer=first.tokenizer).fingerprint == first.fingerprint


def test_the_fingerprint_depends_on_the_text_the_tokenizer_and_the_split(build):
    made = [
        build(STORY),
        build(STORY[:-1]),
        build(STORY, tokenizer="gpt2"),
        build(STORY, tokenizer="chars"),
        build(STORY, validation_fraction=0.2),
        build(STORY, validation_fraction=0),
        build(STORY[:1000], STORY[1000:]),
    ]
    assert len({corpus.fingerprint for corpus in made}) == len(made)
    assert build(STORY).fingerprint == made[0].fingerprint


def test_the_sources_are_those_of_this_build_even_if_the_cached_text_came_from_another_file(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(STORY)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "c.txt").write_text(STORY)
    (tmp_path / "folder" / "d.bin").write_bytes(b"\0")
    names = [(Corpus.build([tmp_path / name], "bytes", cache=tmp_path).sources) for name in ("a.txt", "b.txt")]
    assert names == [(str(tmp_path / "a.txt"),), (str(tmp_path / "b.txt"),)]
    corpus = Corpus.build([tmp_path / "folder"], "bytes", cache=tmp_path)
    assert corpus.skipped == (str(tmp_path / "folder" / "d.bin"),)


@pytest.mark.parametrize("name", ["train.bin", "validation.bin", "corpus.json", "tokenizer.json"])
@pytest.mark.parametrize("how", ["cut", "gone"])
def test_a_damaged_cache_is_refused_by_load_and_built_again(build, name, how):
    first = build(STORY)
    content = (first.path / name).read_bytes()
    (first.path / name).unlink()
    if how == "cut":
        (first.path / name).write_bytes(content[:-4])
    elif name == "tokenizer.json":  # which two other files could replace
        (first.path / "vocab.json").unlink()
    with pytest.raises(DataError, match="is not a complete corpus"):
        Corpus.load(first.path)
    build(STORY)
    assert (first.path / name).read_bytes() == content
    assert sorted(path.name for path in first.path.parent.iterdir()) == [first.path.name]


def flip_a_bit(content):
    return content[:100] + bytes([content[100] ^ 1]) + content[101:]


def exceed_the_vocabulary(content):
    return content[:100] + b"\xff\xff" + content[102:]


@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize("damage", [flip_a_bit, exceed_the_vocabulary])
def test_damaged_tokens_are_built_again_and_said(build, monkeypatch, part, damage):
    monkeypatch.setattr(token_writer, "_HASHED_AT_ONCE", 1000)
    first = build(STORY)
    assert first.damaged_cache is None
    path = first.path / f"{part}.bin"
    content = path.read_bytes()
    path.unlink()  # the first corpus still maps it
    path.write_bytes(damage(content))
    with pytest.raises(DataError, match="is not a complete corpus"):
        Corpus.load(first.path)
    assert build(STORY).damaged_cache == first.path
    assert path.read_bytes() == content
    assert build(STORY).damaged_cache is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", ["train.bin", "validation.bin"])
def test_damaged_tokens_are_built_again_although_windows_renames_no_folder_with_a_mapped_file(build, monkeypatch, name):
    folder = build(STORY).path
    (folder / name).write_bytes(flip_a_bit((folder / name).read_bytes()))
    rename = Path.rename

    def refuse_mapped(path, target):
        if f"{path}/" in Path("/proc/self/maps").read_text():
            raise PermissionError(errno.EACCES, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse_mapped)
    assert build(STORY).damaged_cache == folder
    assert build(STORY).damaged_cache is None


def test_concurrent_builds_are_all_complete(tmp_path):
    (tmp_path / "a.txt").write_text(STORY)
    found = scan([tmp_path / "a.txt"])
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: Corpus.build(found, "bpe:300", cache=tmp_path), range(8)))
    assert len({texts_of(corpus) for corpus in built}) == 1
    assert len(list(built[0].path.parent.iterdir())) == 1


def test_an_interrupted_build_leaves_no_files(build, tmp_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(STORY, progress=interrupt)
    assert list((tmp_path / "cache" / "corpora").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_reported(build, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot be written to .*file \(not a directory\); .*MINIGPT_CACHE"):
        build(STORY, cache=tmp_path / "file")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(corpus_cache, "write_tokens", full)
    with pytest.raises(DataError, match=r"\(no space left on device\); free some space there or set MINIGPT_CACHE"):
        build(STORY)
    assert list((tmp_path / "cache" / "corpora").iterdir()) == []


@pytest.mark.parametrize(("tokenizer", "changed"), [("bytes", STORY + "more"), ("bpe:300", STORY.swapcase())])
def test_a_file_that_changes_during_a_build_is_reported_and_not_cached(tmp_path, changed, tokenizer):
    path = tmp_path / "a.txt"
    path.write_text(STORY)
    found = scan([path])
    path.write_text(changed)
    with pytest.raises(DataError, match=r"a\.txt or another file changed while it was read"):
        Corpus.build(found, tokenizer, cache=tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_environment_variables_choose_the_cache_folder(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text(STORY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("MINIGPT_CACHE", raising=False)
    assert Corpus.build(str(path), "bytes").path.parent == tmp_path / "xdg" / "minigpt" / "corpora"
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "own"))
    assert Corpus.build(path, "bytes").path.parent == tmp_path / "own" / "corpora"


def test_a_cache_in_an_unknown_home_folder_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(STORY)
    monkeypatch.setenv("MINIGPT_CACHE", "~nobody-has-this-name/cache")
    with pytest.raises(DataError) as caught:
        Corpus.build(tmp_path / "a.txt", "bytes")
    assert str(caught.value) == (
        "the folder of the cache (~nobody-has-this-name/cache) begins with ~, and that home folder is unknown; "
        "set MINIGPT_CACHE to a path without ~"
    )


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_progress_increases_to_the_total_bytes(build, tokenizer, monkeypatch):
    monkeypatch.setattr(token_writer, "CHUNK_SIZE", 1000)
    calls = []
    build(STORY, "é" * 100, tokenizer=tokenizer, progress=lambda done, total: calls.append((done, total)))
    assert len(calls) > 10
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1] == (len(STORY.encode()) + 200) * (1 if tokenizer == "bytes" else 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_a_corpus_is_built_in_constant_memory(tmp_path, kind, monkeypatch):
    """Python's own allocations stay below 60 MB for 60 MB of text, and do not grow from 30 MB to 60 MB."""
    monkeypatch.setattr(token_writer, "_MAX_WORKERS", 2)  # each uses memory
    peaks = []
    for repeats in (1000, 2000):
        path = tmp_path / f"a.{kind}"
        with path.open("w") as file:
            for _ in range(repeats):
                file.write(STORY if kind == "txt" else json.dumps({"text": STORY}) + "\n")
        tracemalloc.start()
        corpus = Corpus.build([path], "gpt2", cache=tmp_path / "cache")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert corpus.train_bytes + corpus.validation_bytes == repeats * len(STORY.encode())
        shutil.rmtree(tmp_path / "cache")
    assert peaks[1] < 60e6
    assert peaks[1] < 1.2 * peaks[0]
