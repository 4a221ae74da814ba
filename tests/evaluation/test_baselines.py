"""Baselines: what each may know, by which bytes it is measured, and since when a run is below it."""

import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from minigpt.config import GPTConfig
from minigpt.corpus_report.report import examine
from minigpt.data.corpus import Corpus
from minigpt.data.sources import scan
from minigpt.evaluation import baselines
from minigpt.evaluation.baselines import (
    Baseline,
    all_baselines,
    beaten_since,
    cheap_baselines,
    model_baseline,
    sample,
    spread,
)
from minigpt.evaluation.ngrams import BOUNDARY, ByteModel
from minigpt.model.gpt import GPT
from minigpt.tokenizer.tokenizer import Tokenizer

END = bytes([BOUNDARY])
WORDS = ["whale", "ship", "sea", "captain", "harpoon", "deck", "storm", "sailor"]


def prose(seed: int, words: int) -> bytes:
    return " ".join(random.Random(seed).choices(WORDS, k=words)).encode()


def by_name(measured: list[Baseline]) -> dict[str, Baseline]:
    return {baseline.name: baseline for baseline in measured}


def test_what_stands_in_the_training_text_is_free_for_those_who_may_see_it_and_for_no_other() -> None:
    noise = random.Random(0).randbytes(30_000).replace(END, b"")
    measured = by_name(list(all_baselines(noise + END, noise[5000:15_000] + END)))
    assert 0 < measured["xz"].bits_per_byte < 0.5
    assert measured["xz alone"].bits_per_byte == pytest.approx(8, abs=0.1)
    assert measured["gzip"].bits_per_byte == pytest.approx(8, abs=0.1)
    assert measured["bytes"].bits_per_byte == pytest.approx(8, abs=0.05)
    assert measured["5-gram"].bits_per_byte < 2


def test_an_end_of_text_costs_bits_and_counts_as_no_byte() -> None:
    train, validation = prose(1, 2000) + END, prose(2, 50) + END + prose(3, 50) + END
    measured = by_name(list(all_baselines(train, validation)))
    bits = ByteModel.fit(train, 5).bits(validation)
    assert measured["5-gram"].bits_per_byte == pytest.approx(bits / (len(validation) - 2))
    assert {baseline.validation_bytes for baseline in measured.values()} == {len(validation) - 2}
    assert measured["words"].train_bytes == len(train) - 1
    assert (measured["gzip"].train_bytes, measured["xz alone"].train_bytes) == (0, 0)


def test_eight_words_are_three_bits_to_who_sees_far_enough() -> None:
    measured = by_name(list(all_baselines(prose(1, 20_000) + END, prose(2, 3000) + END)))
    per_word = len(prose(2, 3000)) / 3000
    # Each word is one of eight, and the space behind it can be nothing else. To who counts words without what is before
    # them, every other one is a space, and each of the eight a sixteenth of all.
    assert 3 / per_word < measured["7-gram"].bits_per_byte < 3.3 / per_word
    assert measured["words"].bits_per_byte == pytest.approx((4 + 1) / per_word, rel=0.01)
    assert measured["words"].bits_per_byte < measured["bytes"].bits_per_byte


def corpus_of(folder: Path, *, validation_fraction: float | None = None) -> Corpus:
    path = folder / "text.txt"
    path.write_bytes(b"<|endoftext|>".join(prose(seed, 300) for seed in range(60)))
    return Corpus.build(path, "bytes", cache=folder / "cache", validation_fraction=validation_fraction)


def test_a_run_is_measured_on_the_part_that_training_holds_out(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path)
    measured = by_name(cheap_baselines(corpus))
    assert set(measured) == {"bytes", "5-gram", "gzip", "xz"}
    train, validation = (
        b"".join(corpus.tokenizer.decode_bytes(tokens.tolist()) for tokens in [part]).replace(b"<|endoftext|>", END)
        for part in (corpus.train, corpus.validation)
    )
    assert measured["5-gram"].validation_bytes == corpus.validation_bytes
    assert measured["5-gram"].train_bytes == corpus.train_bytes
    bits = ByteModel.fit(train, 5).bits(validation)
    assert measured["5-gram"].bits_per_byte == pytest.approx(bits / corpus.validation_bytes)


def test_before_a_run_an_ordinary_text_has_the_figures_that_its_examination_finds(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(prose(7, 20_000) + b"\n")
    examined = examine(scan(path, encoding_errors="replace"), tokenizers=("bytes",))
    for tokenizer in ("bytes", "gpt2"):
        before = by_name(cheap_baselines(Corpus.build(path, tokenizer, cache=tmp_path / "cache")))
        assert before == {name: by_name(examined.baselines)[name] for name in ("bytes", "5-gram", "gzip", "xz")}
    assert not any(baseline.is_partial for baseline in examined.baselines)
    assert [baseline.label for baseline in examined.baselines] == [baseline.name for baseline in examined.baselines]


def test_what_saw_a_part_of_the_text_says_of_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_RUN_XZ_MOST", 16_000)
    monkeypatch.setattr(baselines, "_RUN_COUNTED_MOST", 40_000)
    corpus = corpus_of(tmp_path)
    few = by_name(cheap_baselines(corpus))
    assert {name: baseline.label for name, baseline in few.items()} == {
        "bytes": "bytes of 40 kB",
        "5-gram": "5-gram of 40 kB",
        "gzip": "gzip",
        "xz": "xz of 16 kB",
    }
    assert {baseline.is_partial for name, baseline in few.items() if name != "gzip"} == {True}
    assert few["xz"].whole_train_bytes == corpus.train_bytes
    monkeypatch.setattr(baselines, "_RUN_VALIDATION", 5000)
    assert {"gzip on 5 kB", "xz of 16 kB"} <= {baseline.label for baseline in cheap_baselines(corpus)}


def test_a_sample_has_the_bytes_asked_for_whatever_a_token_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_RUN_COUNTED_MOST", 40_000)
    path = tmp_path / "text.txt"
    path.write_bytes(prose(1, 20_000))
    for tokenizer in ("bytes", "bpe:300", "gpt2"):
        measured = by_name(cheap_baselines(Corpus.build(path, tokenizer, cache=tmp_path / "cache")))
        assert measured["5-gram"].train_bytes == pytest.approx(40_000, rel=0.1)


def test_a_record_of_before_knows_nothing_of_parts() -> None:
    old = Baseline(name="xz", bits_per_byte=2.0, train_bytes=9, validation_bytes=3)
    assert (old.is_partial, old.label) == (False, "xz")


def test_where_nothing_is_held_out_there_is_nothing_to_measure(tmp_path: Path) -> None:
    assert cheap_baselines(corpus_of(tmp_path, validation_fraction=0.0)) == []


def test_an_untrained_model_knows_nothing_of_the_text() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=257, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    text = prose(4, 100) + END + prose(5, 30) + END
    measured = model_baseline("mine", model, Tokenizer.named("bytes"), text)
    assert (measured.name, measured.train_bytes, measured.validation_bytes) == ("mine", 0, len(text) - 2)
    assert measured.bits_per_byte == pytest.approx(8, abs=0.2)
    assert "not seen your text" in measured.meaning
    assert not measured.is_partial


def test_of_a_long_text_only_what_a_model_is_measured_on_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_MODEL_TOKENS", 500)
    model = GPT(GPTConfig(vocab_size=257, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    tokenizer, text = Tokenizer.named("bytes"), prose(4, 20_000) + END
    encoded: list[str] = []
    encode = type(tokenizer).encode
    monkeypatch.setattr(type(tokenizer), "encode", lambda self, text: encoded.append(text) or encode(self, text))
    measured = model_baseline("mine", model, tokenizer, text)
    assert 0 < sum(map(len, encoded)) <= 4000
    assert 400 < measured.validation_bytes <= 520
    assert (measured.whole_validation_bytes, measured.is_partial) == (len(text) - 1, True)
    assert measured.label == f"mine on {measured.validation_bytes} B"


def test_a_run_is_below_a_baseline_since_the_last_time_that_it_came_below() -> None:
    figures = {0: 3.0, 10: 2.5, 20: 1.9, 30: 2.1, 40: 1.8}
    log = [{"step": 5, "loss": 1.0}, *({"step": step, "bits_per_byte": bits} for step, bits in figures.items())]
    assert beaten_since(log, {"gzip": 2.7, "xz": 2.0, "5-gram": 1.8, "bytes": 4.0}) == {
        "gzip": 10,
        "xz": 40,
        "bytes": 0,
    }


def test_a_sample_is_as_long_as_asked_and_evenly_spread() -> None:
    assert list(spread(100, 200, 10)) == [(0, 100)]
    assert list(spread(100, 30, 3)) == [(start, start + 3) for start in (0, 10, 21, 32, 43, 53, 64, 75, 86, 97)]
    places = list(spread(360_010, 97_000, 65_536))  # one block and a half
    assert sum(end - start for start, end in places) == pytest.approx(97_000, rel=0.01)
    gaps = {after[0] - before[1] for before, after in pairwise(places)}
    assert max(gaps) - min(gaps) <= 1
    assert (places[0][0], places[-1][1]) == (0, 360_010)
    text = bytes(range(256)) * 4096
    assert len(sample(text, 2**18)) == 2**18
    assert sample(text, len(text)) is text
