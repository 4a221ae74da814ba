"""What a plan says of the model that comes with minigpt, and how a model that was trained here is fine-tuned."""

from pathlib import Path
from typing import Any

import pytest
from builders import new_model

import minigpt
from minigpt.autoplan import shipped_start
from minigpt.autoplan.expectation import ExpectedRange
from minigpt.autoplan.shipped_start import ShippedStart, measure_shipped
from minigpt.data.corpus import Corpus
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.storage.shipped_models import ShippedModel
from minigpt.tokenizer.tokenizer import Tokenizer

BOOK = Path(__file__).parents[2] / "demo" / "sherlock_holmes.txt"


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShippedModel:
    """A model of random weights that comes with a package."""
    save_checkpoint(tmp_path / "tiny", new_model(), Tokenizer.named("bytes"))
    model = ShippedModel(directory=tmp_path / "tiny", sentence="a tiny model")
    monkeypatch.setattr("minigpt.storage.shipped_models.provided", lambda _: (model,))
    return model


def test_the_shipped_model_is_measured_on_the_held_out_text(shipped: ShippedModel, here: Path) -> None:
    corpus = Corpus.build("fox.txt", "bpe:300")
    found = measure_shipped(corpus)
    assert found is not None
    assert found.name == "tiny"
    assert 7.5 < found.bits_per_byte < 8.5  # of 257 tokens, by random weights


def test_without_a_text_or_a_model_there_is_nothing_to_say(
    shipped: ShippedModel, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Corpus.from_tokens([1, 2, 3], Tokenizer.named("bytes"), [4, 5])
    assert measure_shipped(tokens) is None
    assert measure_shipped(Corpus.build("fox.txt", "bytes", validation_fraction=0.0)) is None
    monkeypatch.setattr("minigpt.storage.shipped_models.provided", lambda _: ())
    assert measure_shipped(Corpus.build("fox.txt", "bytes")) is None


def test_the_plan_says_where_it_is_expected_to_end_or_that_it_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_start, "_ENDS", ((1.0, 0.7, 0.9), (1.5, 0.9, 1.0)))
    expected = ExpectedRange(1.5, 2.5)
    assert ShippedStart("tiny", 2.0).outcome(expected) == "1.40–1.80 with --from tiny, which begins at 2.00"
    assert ShippedStart("tiny", 2.4).outcome(expected) == "1.80–2.00 with --from tiny, which begins at 2.40"
    assert ShippedStart("tiny", 2.6).outcome(None) == "--from tiny begins at 2.60 bits per byte"
    assert ShippedStart("tiny", 3.1).outcome(expected) == "--from tiny is not expected to help: it begins at 3.10"


@pytest.mark.usefixtures("steady_plans")
def test_the_plan_shows_it(shipped: ShippedModel, run: Any, here: Path) -> None:
    (here / "book.txt").write_bytes(BOOK.read_bytes()[:100_000])
    for options in (["--plan"], ["--steps", "1", "--no-report"]):  # the whole plan, and its five lines
        done = run("train", "book.txt", "--name", "book", *options)
        shown = " ".join((done.stdout + done.stderr).split())
        assert "--from tiny begins at 8." in shown, shown


@pytest.mark.usefixtures("steady_plans")
def test_what_muon_has_trained_is_fine_tuned_with_it(here: Path) -> None:
    settings: dict[str, Any] = {
        "n_layer": 1, "n_head": 2, "n_embd": 128, "context_length": 16, "tokenizer": "bytes", "device": "cpu",
        "report": False, "sample_every": 0,
    }  # fmt: skip
    for optimizer in ("muon", "adamw"):
        list(minigpt.fit("fox.txt", name=optimizer, steps=1, optimizer=optimizer, batch_size=2, **settings))
        plan = minigpt.plan("fox.txt", base=optimizer, steps=1, device="cpu")
        rate = 0.002 if optimizer == "muon" else 0.000735
        assert (plan.training.optimizer, plan.training.learning_rate) == (optimizer, rate)
    adapter = minigpt.plan("fox.txt", base="muon", steps=1, device="cpu", lora=True)
    assert adapter.training.optimizer == "adamw"
    chosen = minigpt.plan("fox.txt", base="muon", steps=1, device="cpu", optimizer="adamw")
    assert chosen.training.learning_rate == 0.000735
