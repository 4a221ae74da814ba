"""The headline says true things: where a figure lies among the methods, what the model is, and how it was planned."""

from typing import Any

import pytest

from minigpt.baselines.verdict import Method, verdict
from minigpt.reports.headline import headline, spoken_duration
from minigpt.storage.run_record import RunRecord

SIZES = {"train_bytes": 900, "validation_bytes": 100}
WHOLE = {**SIZES, "whole_train_bytes": 900, "whole_validation_bytes": 100}
CORPUS = {"fingerprint": "f00d", "train_tokens": 450, **SIZES}
BASELINES = [
    {"name": "bytes", "bits_per_byte": 4.5, **WHOLE},
    {"name": "5-gram", "bits_per_byte": 2.6, **WHOLE},
    {"name": "gzip", "bits_per_byte": 3.4, **WHOLE, "train_bytes": 0},
    {"name": "xz", "bits_per_byte": 2.5, **WHOLE},
]


def record(**entries: Any) -> RunRecord:
    baselines = {"fingerprint": "f00d", "measured": BASELINES}
    return RunRecord.from_dict({"corpus": CORPUS, "baselines": baselines, **entries})


def evaluation(step: int, bits: float) -> dict[str, Any]:
    return {"step": step, "validation_loss": 2 * bits, "bits_per_byte": bits}


def words(bits: float, **entries: Any) -> str:
    return str(headline(record(**entries), [evaluation(9, bits)], None)["verdict"])


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (2.1, "Better than xz, the best of the 4 methods it is compared with."),
        (2.5, "Between a 5-gram table and xz."),  # equal is not better
        (2.55, "Between a 5-gram table and xz."),
        (3.0, "Between gzip and a 5-gram table."),
        (4.0, "Between byte frequencies and gzip."),
        (4.5, "Not yet better than byte frequencies, the weakest method it is compared with."),
        (9.0, "Not yet better than byte frequencies, the weakest method it is compared with."),
    ],
)
def test_the_verdict_names_the_neighbors_of_the_figure(bits: float, expected: str) -> None:
    assert words(bits) == expected


def test_a_method_that_saw_part_of_the_text_does_not_count() -> None:
    methods = [
        Method("gzip", "gzip", "", 3.4),
        Method("5-gram table", "a 5-gram table", "", 2.6),
        Method("xz", "xz", "", 2.5, is_partial=True),
    ]
    assert verdict(2.4, methods) == "Better than a 5-gram table, the best of the 2 methods it is compared with."
    assert verdict(2.4, methods[2:]) == "Not compared: no simple method was measured on the whole text."
    assert verdict(2.4, methods[:1]) == "Better than gzip."


def test_a_fine_tuned_model_is_compared_with_the_one_that_it_began_with() -> None:
    tuned = record(**{"from": "/home/jane/models/gpt2"})
    lines = [evaluation(0, 1.4), evaluation(9, 1.1)]
    data = headline(tuned, lines, None)
    assert data["bits"] == 1.1
    assert data["verdict"] == "Better than gpt2 before fine-tuning, the best of the 5 methods it is compared with."
    assert data["plan"] == ""
    for option in ("text", "loss_on", "context_length"):
        changed = record(**{"from": "gpt2", "changes": [{"step": 5, "option": option}]})
        assert len(headline(changed, lines, None)["methods"]) == 4  # step 0 measured something else
    assert len(headline(record(), lines, None)["methods"]) == 4  # step 0 of a new model


def test_the_figure_is_that_of_the_result_or_the_best_so_far() -> None:
    lines = [evaluation(1, 3.0), evaluation(2, 2.2), evaluation(3, 2.4), {"step": 4, "bits_per_byte": None}]
    assert headline(record(), lines, None)["bits"] == 2.2
    changed = record(changes=[{"step": 3, "option": "text"}])  # where the log has the new evaluation
    assert headline(changed, lines, None)["bits"] == 2.4
    assert headline(record(result={"step": 3, "bits_per_byte": 2.3}), lines, None)["bits"] == 2.3
    assert headline(record(result={"step": 3}), [], None)["bits"] is None
    none = headline(RunRecord.from_dict({}), [], None)
    assert (none["bits"], none["verdict"], none["methods"], none["facts"], none["plan"]) == (None, "", [], [], "")
    assert "nothing says how well" in none["meaning"]


def test_the_meaning_is_the_share_of_eight_bits() -> None:
    assert "to 25% of its size" in headline(record(), [evaluation(1, 2.0)], None)["meaning"]
    assert "no better" in headline(record(), [evaluation(1, 8.0)], None)["meaning"]


def test_the_facts_and_the_plan_are_those_of_the_record() -> None:
    full = record(
        sources=["/home/jane/a.txt", "C:\\texts\\b.txt", "-", "/x/"],
        model={"vocab_size": 1000, "n_positions": 64, "n_embd": 192, "n_layer": 1, "n_head": 6},
        training={"minutes": 2, "context_length": 64, "batch_size": 8, "learning_rate": 0.01},
        environment={"cpu": "A Processor", "cores": 2},
        preset="micro",
        tokenizer="bpe:1000",
        forecast=[2.0, 2.4],
    )
    data = headline(full, [], {"step": 1200, "seconds": 125.2, "tokens": 1_234_567, "loss": 2.0})
    assert data["facts"] == [
        ["Model", "649,536 parameters", "1 layer of width 192, 6 attention heads"],
        ["Text", "1 kB", "a.txt, b.txt and 2 more; 10% held out"],
        ["Training time", "2 min 5 s", "1,200 steps, 1.23 million tokens"],
        ["Machine", "CPU", "A Processor, 2 cores"],
    ]
    assert data["plan"] == (
        "train a new model (micro); 2 minutes; 1,000 tokens in the vocabulary (bpe:1000); 8 × 64 tokens per step; "
        "Muon with learning rate 0.01; expected 2.00 to 2.40 bits per byte."
    )


@pytest.mark.parametrize(
    ("train", "held_out", "expected"),
    [
        (900, 100, "10% held out"),
        (99, 1, "1% held out"),
        (990_000_000, 2_000_000, "2 MB held out"),
        (990_000_000, 2_345_678, "2.3 MB held out"),
        (1000, 0, "nothing held out"),
        (0, 0, "nothing held out"),
    ],
)
def test_a_small_part_held_out_has_its_size(train: int, held_out: int, expected: str) -> None:
    corpus = {**CORPUS, "train_bytes": train, "validation_bytes": held_out}
    (text,) = (fact for fact in headline(record(corpus=corpus), [], None)["facts"] if fact[0] == "Text")
    assert text[2] == expected


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (999_999, "999,999"),
        (1_000_000, "1 million"),
        (999_499_999, "999 million"),
        (999_600_000, "1 billion"),
        (1_234_000_000, "1.23 billion"),
    ],
)
def test_large_counts_are_rounded_to_three_digits(tokens: int, expected: str) -> None:
    facts = headline(record(), [], {"step": 1, "seconds": 1.0, "tokens": tokens, "loss": 2.0})["facts"]
    assert ["Training time", "1 s", f"1 step, {expected} tokens"] in facts


def test_the_meaning_says_if_only_one_roles_turns_were_measured() -> None:
    chat = record(training={"loss_on": "assistant", "minutes": 2})
    meaning = headline(chat, [evaluation(1, 2.0)], None)["meaning"]
    assert meaning.startswith("On text that it was not trained on, in the assistant's turns only; lower is better.")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (125, "2 min 5 s"), (7384, "2 h 3 min")]
)
def test_durations_have_units(seconds: float, expected: str) -> None:
    assert spoken_duration(seconds) == expected
