"""Files of tokens of other programs: the same ids in the same order as of the text, held-out documents, damage."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from token_writers import write_datatrove, write_llmc, write_meta, write_nanogpt

from minigpt.config import ReadingConfig
from minigpt.data.corpus import Corpus
from minigpt.data.texts import find_texts
from minigpt.errors import ConfigError, DataError, MinigptError, MissingTextError
from minigpt.large_corpora import token_files
from minigpt.large_corpora.corpora import of_tokens
from minigpt.large_corpora.token_files import find_token_files
from minigpt.large_corpora.token_tokenizer import tokenizer_of
from minigpt.tokenizer.tokenizer import Tokenizer

GPT2 = Tokenizer.named("gpt2")
WORDS = ["one", "two", "three", "four", "five", "six", "seven"]
NUMBERS = random.Random(0)
DOCUMENTS = [f"{n} " + " ".join(NUMBERS.choices(WORDS, k=NUMBERS.randint(5, 40))) for n in range(300)]
IDS = [[*GPT2.encode(document), GPT2.end_of_text] for document in DOCUMENTS]


def opened(
    *sources: Path | str, given: Tokenizer | str | None = None, fraction: float | None = None, cache: Path | None = None
) -> Corpus:
    """The corpus of files of tokens, as a job reads it."""
    files = find_token_files([str(source) for source in sources])
    tokenizer, characters = tokenizer_of(files, given)
    folder = cache or files[0].path.parent / "cache"
    return of_tokens([files], (), tokenizer, characters, cache=folder, validation_fraction=fraction)


def joined(parts: Sequence[Sequence[int]]) -> list[int]:
    return [id for part in parts for id in part]


def split_at(ids: Sequence[int], mark: int) -> list[list[int]]:
    """The documents of a stream, each with the end-of-text that ends it."""
    return [part.tolist() for part in np.split(ids, np.flatnonzero(np.array(ids) == mark) + 1) if len(part)]


STREAM = joined(IDS)


@pytest.fixture
def text(tmp_path: Path) -> Corpus:
    """The text of the documents, tokenized by minigpt."""
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(DOCUMENTS))
    return Corpus.build(tmp_path / "text.txt", "gpt2", cache=tmp_path / "cache")


def write_parts(folder: Path, kind: str, text: Corpus) -> list[Path]:
    """Two files of the training part of a text, of which the first ends within a document, and one of the other."""
    train, validation = text.train.tolist(), text.validation.tolist()
    parts = {"a_train_0": train[:1000], "a_train_1": train[1000:], "a_val_0": validation}
    if kind == "datatrove":
        return [
            write_datatrove(
                folder / f"{name}.ds", split_at(ids, GPT2.end_of_text), "gpt2", width=4 if "1" in name else 2
            )
            for name, ids in parts.items()
        ]
    write = write_nanogpt if kind == "nanogpt" else write_llmc
    return [write(folder / f"{name}.bin", ids) for name, ids in parts.items()]


def test_files_of_every_program_have_the_ids_of_the_text_in_the_same_order(tmp_path: Path, text: Corpus) -> None:
    fingerprints = set()
    for kind in ("nanogpt", "llmc", "datatrove"):
        (tmp_path / kind).mkdir()
        write_parts(tmp_path / kind, kind, text)
        corpus = opened(*sorted((tmp_path / kind).glob("*")), given="gpt2" if kind == "nanogpt" else None)
        fingerprints.add(corpus.fingerprint)
        for other in (corpus, Corpus.load(corpus.path)):  # the second as in another process
            assert np.array_equal(other.train[:], text.train)
            assert np.array_equal(other.validation, text.validation)
            assert (other.train_bytes, other.validation_bytes) == (text.train_bytes, text.validation_bytes)
            for step in (0, 7, 500):
                for found, expected in zip(other.batch(step, 4, 32, 3), text.batch(step, 4, 32, 3), strict=True):
                    assert found.equal(expected)
        assert not corpus.has_text
        assert corpus.held_out.startswith("a_val_0")
    assert len(fingerprints) == 1


def test_characters_of_a_meta_pkl_have_the_ids_of_a_chars_tokenizer(tmp_path: Path) -> None:
    whole = "zébra, " + " ".join(DOCUMENTS)
    characters = "".join(sorted(set(whole)))
    write_meta(tmp_path, characters)
    for name in ("train", "val"):
        write_nanogpt(tmp_path / f"{name}.bin", [characters.index(each) for each in whole])
    chars = Tokenizer.train(whole, "chars")
    for given in (None, "chars", chars):
        corpus = opened(*sorted(tmp_path.glob("*.bin")), given=given)
        assert corpus.tokenizer.fingerprint == chars.fingerprint
        assert corpus.train[:].tolist() == corpus.validation.tolist() == chars.encode(whole)
    with pytest.raises(DataError, match=r"has characters|have characters"):
        opened(tmp_path / "train.bin", given="gpt2")


@pytest.mark.parametrize("is_begun", [False, True])
def test_the_last_documents_are_held_out(tmp_path: Path, is_begun: bool) -> None:
    documents = IDS
    if is_begun:  # as llm.c and modded-nanogpt write them
        documents = [[GPT2.end_of_text, *each[:-1]] for each in IDS]
    files = [write_llmc(tmp_path / f"{n}.bin", joined(documents[100 * n : 100 * n + 100])) for n in range(3)]
    for fraction in (0.2, 0.5):
        corpus = opened(*files, fraction=fraction)
        assert [*corpus.train[:].tolist(), *corpus.validation.tolist()] == joined(documents)
        assert corpus.train[-1:] == GPT2.end_of_text
        assert len(corpus.validation) / len(joined(documents)) == pytest.approx(fraction, abs=0.02)
        assert corpus.held_out == "the last documents"
    corpus = opened(*files, fraction=0.0)
    assert (len(corpus.train), corpus.held_out) == (len(joined(documents)), "nothing")


def test_the_end_of_files_without_documents_is_held_out(tmp_path: Path) -> None:
    ids = GPT2.encode(" ".join(DOCUMENTS))
    corpus = opened(write_nanogpt(tmp_path / "x.bin", ids), given="gpt2", fraction=0.1)
    assert [*corpus.train[:].tolist(), *corpus.validation.tolist()] == ids
    assert (len(corpus.validation), corpus.held_out, corpus.n_documents) == (round(0.1 * len(ids)), "the end", 0)


def test_long_files_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_files, "_BLOCK", 64)
    monkeypatch.setattr(token_files, "_MOST_VALIDATION", 100)
    file = write_llmc(tmp_path / "x.bin", STREAM)
    val = write_llmc(tmp_path / "val.bin", STREAM)
    whole = opened(file, val)
    monkeypatch.setattr(token_files, "_SAMPLED", 3000)
    corpus = opened(file, val)
    assert corpus.train_bytes == pytest.approx(whole.train_bytes, rel=0.1)
    assert corpus.n_documents == pytest.approx(whole.n_documents, rel=0.2)
    assert (len(corpus.validation), corpus.held_out) == (100, "the beginning of val.bin")
    assert opened(file, val, file).fingerprint == corpus.fingerprint
    with pytest.raises(DataError, match="has the token 50,300"):  # the last token is in the sample
        opened(write_llmc(tmp_path / "y.bin", [*STREAM, 50_300]), fraction=0.0)


def test_files_that_change_are_another_corpus_and_moved_ones_the_same(tmp_path: Path) -> None:
    file = write_llmc(tmp_path / "x.bin", STREAM)
    first = opened(file)
    moved = opened(file.rename(tmp_path / "y.bin"))
    assert (moved.fingerprint, moved.path) != (first.fingerprint, first.path)
    assert moved.fingerprint == first.fingerprint
    write_llmc(file, joined(IDS[::-1]))
    with pytest.raises(DataError, match=r"x\.bin or another file of tokens has changed since"):
        Corpus.load(first.path)
    changed = opened(file)
    assert changed.fingerprint != first.fingerprint == moved.fingerprint
    assert Corpus.load(changed.path).fingerprint == changed.fingerprint


def test_an_id_beyond_the_sample_that_the_tokenizer_lacks_stops_the_batch_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_files, "_BLOCK", 64)
    monkeypatch.setattr(token_files, "_SAMPLED", 64)
    ids = np.array(STREAM)
    ids[len(ids) // 3 : len(ids) // 3 + 50] = 50_300
    corpus = opened(write_llmc(tmp_path / "x.bin", ids.tolist()), fraction=0.0)
    with pytest.raises(DataError, match=r"x\.bin has the token 50,300, and its tokenizer has only 50,257"):
        corpus.batch(0, len(ids) // 32, 32, 3)


def test_a_mixture_of_files_of_tokens_has_their_shares(tmp_path: Path) -> None:
    low, high = (
        write_nanogpt(tmp_path / name, range(start, start + 99)) for name, start in (("a.bin", 0), ("b.bin", 99))
    )
    texts = find_texts([f"{low}=1", f"{high}=3"], ReadingConfig(mix=True))
    corpus = texts.build(Tokenizer.named("bytes"), cache=tmp_path / "cache")
    batches = [corpus.batch(step, 500, 4, 1)[0] for step in range(20)]
    assert sum(int((batch[:, 0] >= 99).sum()) for batch in batches) == 7500
    again = Corpus.load(corpus.path)
    assert again.fingerprint == corpus.fingerprint
    assert again.batch(3, 500, 4, 1)[0].equal(batches[3])
    with pytest.raises(ConfigError, match=r"a\.bin is in two texts, so .*; remove it from one of them$"):
        find_texts([f"{low}=1", f"{low}=3"], ReadingConfig(mix=True))


def damaged(folder: Path, kind: str) -> Path:
    """A file of tokens with this damage."""
    path, ids = folder / "x.bin", STREAM
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "odd":
        path.write_bytes(np.array(ids, "<u2").tobytes()[:-1])
    elif kind in ("<u4", "<i8"):
        write_nanogpt(path, ids, kind)
    elif kind == "text":
        path.write_text(" ".join(DOCUMENTS).ljust(10_000))
    elif kind == "zip":
        path.write_bytes(b"PK\3\4" + bytes(100))
    elif kind == "magic":
        write_llmc(path, ids, magic=20240521)
    elif kind == "version":
        write_llmc(path, ids, version=2)
    elif kind == "truncated":
        write_llmc(path, ids, count=len(ids) + 1)
    elif kind == "high":
        write_nanogpt(path, [*ids, 50_257])
    else:
        path = write_datatrove(folder / "x.ds", IDS, "gpt2")
        index, metadata = folder / "x.ds.index", folder / "x.ds.metadata"
        match kind:
            case "ds truncated":
                path.write_bytes(path.read_bytes()[:-2])
            case "ds alone":
                index.unlink()
                metadata.unlink()
            case "ds index":
                index.write_bytes(index.read_bytes()[:-1])
            case "ds metadata":
                metadata.write_text("gpt2")
    return path


def test_tasks_of_datatrove_without_documents_are_skipped(tmp_path: Path) -> None:
    write_datatrove(tmp_path / "00000.ds", IDS, "gpt2")
    for suffix in ("ds", "ds.index"):
        (tmp_path / f"00001.{suffix}").touch()
    (tmp_path / "00001.ds.metadata").write_text("gpt2|2\n0\n0 T")
    corpus = opened(tmp_path / "00000.ds", tmp_path / "00001.ds", fraction=0.0)
    assert corpus.train[:].tolist() == STREAM
    with pytest.raises(DataError, match=r"00001\.ds is empty"):
        opened(tmp_path / "00001.ds")
    (tmp_path / "00001.ds.index").unlink()  # as of a task that was killed
    with pytest.raises(DataError, match=r"00001\.ds is empty"):
        opened(tmp_path / "00000.ds", tmp_path / "00001.ds")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("empty", "x.bin is empty"),
        ("folder", "x.bin is not a file"),
        ("odd", "truncated, or not an array of uint16"),
        ("<u4", "has ids of 32 or 64 bits"),
        ("<i8", "has ids of 32 or 64 bits"),
        ("text", "rename it to .txt"),
        ("zip", "another kind of file"),
        ("magic", "the magic number 20240521 and version 1; of llm.c's files, those with 20240520"),
        ("version", "version 2; of llm.c's files"),
        ("truncated", "its header says"),
        ("high", "x.bin has the token 50,257, and its tokenizer has only 50,257"),
        ("ds truncated", "x.ds is truncated"),
        ("ds alone", "neither x.ds.index nor x.ds.metadata"),
        ("ds index", "x.ds.index or x.ds.metadata is damaged"),
        ("ds metadata", "x.ds.index or x.ds.metadata is damaged"),
    ],
)
def test_a_damaged_file_is_refused_in_a_sentence(tmp_path: Path, kind: str, message: str) -> None:
    with pytest.raises(DataError) as error:
        opened(damaged(tmp_path, kind), given="gpt2")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_tokenizer_is_the_recorded_one_or_an_error(tmp_path: Path) -> None:
    raw, shard = write_nanogpt(tmp_path / "raw.bin", STREAM), write_llmc(tmp_path / "shard.bin", STREAM)
    GPT2.save(tmp_path / "tokenizer")
    named = write_datatrove(tmp_path / "a.ds", IDS, str(tmp_path / "tokenizer" / "tokenizer.json"))
    unknown = write_datatrove(tmp_path / "b.ds", IDS, "org/model")
    unnamed = write_datatrove(tmp_path / "c.ds", IDS, "Unknown Tokenizer|2")
    assert opened(shard).tokenizer.name == opened(named).tokenizer.name == "gpt2"
    for sources, given, message in (
        ([raw], None, r"does not name its tokenizer; give --tokenizer gpt2, or put nanoGPT's meta.pkl"),
        ([raw], "bpe:512", r"tokenizer \(bpe:512\) is trained on a text"),
        ([unknown], None, r"the tokenizer of .*b.ds, 'org/model', is not here; put its tokenizer.json next to"),
        ([unnamed], None, "does not name its tokenizer"),
        ([named], "bytes", "are those of gpt2, not of bytes"),
        ([named, raw], None, "have different tokenizers"),
        ([raw, tmp_path / "text.txt"], "gpt2", "raw.bin has tokens and .*text.txt is a text"),
        ([tmp_path / "missing.bin"], "gpt2", "missing.bin does not exist"),
        ([write_nanogpt(tmp_path / "val.bin", IDS[0])], "gpt2", "val.bin is for validation, by its name"),
    ):
        with pytest.raises(MinigptError, match=message):
            opened(*sources, given=given)
    (tmp_path / "beside").mkdir()
    GPT2.save(tmp_path / "beside")
    assert opened(write_nanogpt(tmp_path / "beside" / "medieval.bin", STREAM)).tokenizer.name == "gpt2"
    with pytest.raises(MissingTextError):
        find_token_files([str(tmp_path / "*.none.bin")])
    with pytest.raises(ConfigError, match=r"encoding has no effect on .*raw\.bin"):
        find_texts([str(raw)], ReadingConfig(encoding="latin-1"))
