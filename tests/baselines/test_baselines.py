"""Baselines: what each method may use, which bytes it is measured on, and since when a run beats it."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import bytes_ending_in, new_model

from minigpt.baselines import baselines
from minigpt.baselines.baselines import (
    Baseline,
    all_baselines,
    beaten_since,
    cheap_baselines,
    copied_share,
    model_baseline,
)
from minigpt.baselines.ngrams import BOUNDARY, ByteNgramModel
from minigpt.corpus_report.build_report import build_report
from minigpt.data.corpus import Corpus
from minigpt.data.sources import scan
from minigpt.tokenizer.tokenizer import Tokenizer

END = bytes([BOUNDARY])
WORDS = ["whale", "ship", "sea", "captain", "harpoon", "deck", "storm", "sailor"]


def prose(seed: int, words: int) -> bytes:
    return " ".join(random.Random(seed).choices(WORDS, k=words)).encode()


def by_name(measured: list[Baseline]) -> dict[str, Baseline]:
    return {baseline.name: baseline for baseline in measured}


def test_only_methods_that_see_the_training_text_profit_from_it() -> None:
    noise = random.Random(0).randbytes(30_000).replace(END, b"")
    measured = by_name(list(all_baselines(noise + END, noise[5000:15_000] + END)))
    assert 0 < measured["xz"].bits_per_byte < 0.5
    assert measured["xz alone"].bits_per_byte == pytest.approx(8, abs=0.1)
    assert measured["gzip"].bits_per_byte == pytest.approx(8, abs=0.1)
    assert measured["bytes"].bits_per_byte == pytest.approx(8, abs=0.05)
    assert measured["5-gram"].bits_per_byte < 2


def test_an_end_of_text_costs_bits_but_counts_as_no_byte() -> None:
    train, validation = prose(1, 2000) + END, prose(2, 50) + END + prose(3, 50) + END
    measured = by_name(list(all_baselines(train, validation)))
    bits = ByteNgramModel.fit(train, 5).bits(validation)
    assert measured["5-gram"].bits_per_byte == pytest.approx(bits / (len(validation) - 2))
    assert {baseline.validation_bytes for baseline in measured.values()} == {len(validation) - 2}
    assert measured["words"].train_bytes == len(train) - 1
    assert (measured["gzip"].train_bytes, measured["xz alone"].train_bytes) == (0, 0)


def test_eight_equally_likely_words_cost_three_bits_with_enough_context() -> None:
    measured = by_name(list(all_baselines(prose(1, 20_000) + END, prose(2, 3000) + END)))
    per_word = len(prose(2, 3000)) / 3000
    # Each word is one of eight, and a space must follow it. Counted without context, half of the words are spaces, and
    # each of the eight words is a sixteenth of all.
    assert 3 / per_word < measured["7-gram"].bits_per_byte < 3.3 / per_word
    assert measured["words"].bits_per_byte == pytest.approx((4 + 1) / per_word, rel=0.01)
    assert measured["words"].bits_per_byte < measured["bytes"].bits_per_byte


def corpus_of(
    folder: Path, *, validation_fraction: float | None = None, tokenizer: Tokenizer | str = "bytes"
) -> Corpus:
    path = folder / "text.txt"
    path.write_bytes(b"<|endoftext|>".join(prose(seed, 300) for seed in range(60)))
    return Corpus.build(path, tokenizer, cache=folder / "cache", validation_fraction=validation_fraction)


def test_the_baselines_of_a_run_equal_those_of_the_corpus_report(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(prose(7, 20_000) + b"\n")
    report = build_report(scan(path, encoding_errors="replace"), tokenizers=("bytes",))
    for tokenizer in ("bytes", "gpt2"):
        before = by_name(cheap_baselines(Corpus.build(path, tokenizer, cache=tmp_path / "cache")))
        assert before == {name: by_name(report.baselines)[name] for name in ("bytes", "5-gram", "gzip", "xz")}
    assert not any(baseline.is_partial for baseline in report.baselines)
    assert [baseline.label for baseline in report.baselines] == [baseline.name for baseline in report.baselines]


def test_the_name_of_the_end_of_text_token_does_not_matter(tmp_path: Path) -> None:
    named = cheap_baselines(corpus_of(tmp_path, tokenizer=bytes_ending_in("</s>")))
    assert named == cheap_baselines(corpus_of(tmp_path))


def test_a_baseline_from_a_sample_has_its_size_in_the_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_RUN_XZ_MOST", 16_000)
    monkeypatch.setattr(baselines, "_RUN_NGRAM_MOST", 40_000)
    corpus = corpus_of(tmp_path)
    few = by_name(cheap_baselines(corpus))
    assert {name: baseline.label for name, baseline in few.items()} == {
        "bytes": "bytes (trained on 40 kB)",
        "5-gram": "5-gram (trained on 40 kB)",
        "gzip": "gzip",
        "xz": "xz (trained on 16 kB)",
    }
    assert {baseline.is_partial for name, baseline in few.items() if name != "gzip"} == {True}
    assert few["xz"].whole_train_bytes == corpus.train_bytes
    monkeypatch.setattr(baselines, "_RUN_VALIDATION", 5000)
    assert {"gzip (measured on 5 kB)", "xz (trained on 16 kB)"} <= {
        baseline.label for baseline in cheap_baselines(corpus)
    }


def test_a_sample_has_the_requested_bytes_with_every_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_RUN_NGRAM_MOST", 40_000)
    path = tmp_path / "text.txt"
    path.write_bytes(prose(1, 20_000))
    for tokenizer in ("bytes", "bpe:300", "gpt2"):
        measured = by_name(cheap_baselines(Corpus.build(path, tokenizer, cache=tmp_path / "cache")))
        assert measured["5-gram"].train_bytes == pytest.approx(40_000, rel=0.1)


def test_without_validation_text_there_are_no_baselines(tmp_path: Path) -> None:
    assert cheap_baselines(corpus_of(tmp_path, validation_fraction=0.0)) == []
    ends = np.full(3, Tokenizer.named("bytes").end_of_text)
    assert cheap_baselines(replace(corpus_of(tmp_path), validation=ends, validation_bytes=0)) == []


def test_an_untrained_model_needs_eight_bits_per_byte() -> None:
    model = new_model()
    text = prose(4, 100) + END + prose(5, 30) + END
    measured = model_baseline("mine", model, Tokenizer.named("bytes"), text)
    assert (measured.name, measured.train_bytes, measured.validation_bytes) == ("mine", 0, len(text) - 2)
    assert measured.bits_per_byte == pytest.approx(8, abs=0.2)
    assert "not seen your text" in measured.meaning
    assert not measured.is_partial


def test_only_the_measured_sample_of_a_long_text_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_MODEL_TOKENS", 500)
    model = new_model()
    tokenizer, text = Tokenizer.named("bytes"), prose(4, 20_000) + END
    encoded: list[str] = []
    encode = type(tokenizer).encode
    monkeypatch.setattr(type(tokenizer), "encode", lambda self, text: encoded.append(text) or encode(self, text))
    measured = model_baseline("mine", model, tokenizer, text)
    assert 0 < sum(map(len, encoded)) <= 4000
    assert 400 < measured.validation_bytes <= 520
    assert (measured.whole_validation_bytes, measured.is_partial) == (len(text) - 1, True)
    assert measured.label == f"mine (measured on {measured.validation_bytes} B)"


def test_a_baseline_is_beaten_since_the_last_evaluation_that_fell_below_it() -> None:
    figures = {0: 3.0, 10: 2.5, 20: 1.9, 30: 2.1, 40: 1.8}
    log = [{"step": 5, "loss": 1.0}, *({"step": step, "bits_per_byte": bits} for step, bits in figures.items())]
    assert beaten_since(log, {"gzip": 2.7, "xz": 2.0, "5-gram": 1.8, "bytes": 4.0}) == {
        "gzip": 10,
        "xz": 40,
        "bytes": 0,
    }


@pytest.mark.parametrize(("copied", "expected"), [(0, 0.0), (1000, 0.5), (2000, 1.0)])
def test_the_share_of_the_held_out_text_that_occurs_in_the_training_text(
    tmp_path: Path, copied: int, expected: float
) -> None:
    numbers = random.Random(1)
    train = "".join(chr(numbers.randint(97, 122)) for _ in range(18_000))
    new = "".join(chr(numbers.randint(97, 122)) for _ in range(2000 - copied))
    (tmp_path / "text.txt").write_text(train + train[:copied] + new)
    corpus = Corpus.build(tmp_path / "text.txt", "bytes", cache=tmp_path / "cache")
    assert copied_share(corpus) == pytest.approx(expected, abs=0.1)
