"""What a finished run proposes: to continue, more text, dropout, or GPT-2."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minigpt.autoplan.next_steps import NextStep, _number, next_steps
from minigpt.config import GPTConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.model.gpt import GPT
from minigpt.run_options import RunOptions
from minigpt.runs.job import Job
from minigpt.runs.reading import corpus_record
from minigpt.storage.run import Run
from minigpt.storage.run_record import BaselineRecord, BaselinesRecord, Change, Result, RunRecord

FALLING, FLAT = [3.0, 2.6, 2.4, 2.2, 2.0], [3.0, 2.2, 2.01, 2.0, 2.0]
RISING = [3.0, 2.4, 2.0, 2.05, 2.1]
SENTENCE = "He had never been able to say why the old house on the hill was so quiet in the evening. "


@pytest.fixture
def jobs(here: Path) -> Any:
    """Makes a finished job of 300 steps with these evaluations."""

    def make(bits: list[float], text: str = "", reason: str = "length", **changes: Any) -> Job:
        (here / "text.txt").write_text(text or 600 * SENTENCE)
        corpus = Corpus.build(here / "text.txt", "bytes", cache=here / "cache")
        config = TrainConfig(minutes=2, context_length=64, batch_size=16)
        baseline = BaselineRecord(
            name="5-gram",
            bits_per_byte=2.2,
            train_bytes=corpus.train_bytes,
            validation_bytes=corpus.validation_bytes,
            whole_train_bytes=corpus.train_bytes,
            whole_validation_bytes=corpus.validation_bytes,
        )
        record = RunRecord(
            sources=(str(here / "text.txt"),),
            asked=RunOptions.of({"minutes": 2}),
            corpus=corpus_record(corpus),
            baselines=BaselinesRecord(fingerprint=corpus.fingerprint, measured=(baseline,)),
            training=config,
            result=Result(step=300, reason=reason, best_step=300, bits_per_byte=min(bits), validation_loss=1.0),
        ).replace(**changes)
        model = GPT(GPTConfig(vocab_size=257, n_positions=64, n_embd=128, n_layer=4, n_head=4))
        run = Run.create(
            here / "checkpoints" / f"run{len(list((here / 'checkpoints').glob('*')))}", model, corpus.tokenizer, record
        )
        for number, each in enumerate(bits):
            run.log({"step": 75 * number, "validation_loss": each, "bits_per_byte": each, "tokens": 1, "seconds": 1.0})
        return Job(model=model, corpus=corpus, config=config, run=run, resume=False)

    return make


def commands(steps: list[NextStep]) -> list[str]:
    return [" ".join(command) for step in steps for command in step.commands]


def texts(steps: list[NextStep]) -> str:
    return "\n".join(step.text for step in steps)


def test_a_run_that_was_still_improving_continues_with_a_range_of_what_to_expect(jobs: Any) -> None:
    job = jobs(FALLING)
    found = next_steps(job)
    assert (
        found[0].text == "still improving at the end: 2.2000 to 2.0000 bits per byte in the last quarter of the steps"
    )
    assert found[1].text.startswith("continue to 8 minutes in total; 4 of 5 such runs end at 1.")
    assert commands(found)[0] == f"train --resume --name {job.run.directory.name} --minutes 8"


@pytest.mark.parametrize("option", ["text", "loss_on", "context_length", "eval_tokens"])
def test_losses_of_other_targets_are_not_compared_with_the_present_ones(jobs: Any, option: str) -> None:
    bits = [3.0, 1.0, 2.8, 2.6, 2.4, 2.2, 2.0]
    assert "got worse after step 75" in texts(next_steps(jobs(bits)))
    changed = jobs(bits, changes=(Change(step=150, option=option, before="a", after="b"),))
    assert "still improving" in texts(next_steps(changed))


@pytest.mark.parametrize(
    "changes",
    [
        {"asked": RunOptions.of({"minutes": 2, "learning_rate": 0.1})},
        {"asked": None},
        {"base": "gpt2"},
        {"baselines": None},
    ],
)
def test_nothing_is_expected_of_a_run_unlike_the_experiments(jobs: Any, changes: dict[str, Any]) -> None:
    assert next_steps(jobs(FALLING, **changes))[1].text == "continue to 8 minutes in total:"


@pytest.mark.parametrize(
    ("length", "option"),
    [
        ({"minutes": 0.1}, "--minutes 1"),
        ({"minutes": 7}, "--minutes 20"),
        ({"minutes": 9000}, "--minutes 36000"),
        ({"steps": 300}, "--steps 1200"),
        ({"epochs": 1.5}, "--epochs 6"),
    ],
)
def test_the_longer_length_is_in_the_unit_of_the_run(jobs: Any, length: dict[str, Any], option: str) -> None:
    job = jobs(FALLING)
    job = replace(job, config=job.config.replace(**({"minutes": None} | length)))
    assert commands(next_steps(job))[0].endswith(option)


def test_a_run_that_got_worse_needs_more_text_or_dropout(jobs: Any) -> None:
    found = next_steps(jobs(RISING))
    assert found[0].text == (
        "validation got worse after step 150: 2.0000 to 2.1000 bits per byte; the best weights are kept"
    )
    assert commands(found)[:2] == ["train text.txt MORE_TEXT", "train text.txt --dropout 0.2"]
    assert "continue" not in texts(found)


@pytest.mark.parametrize(
    ("merges", "dropout", "bpe_dropout", "options"),
    [
        (False, 0.4, 0.0, "--dropout 0.5"),
        (False, 0.6, 0.0, None),
        (True, 0.6, 0.0, "--dropout 0.6 --bpe-dropout 0.1"),
        (True, 0.2, 0.7, "--dropout 0.4 --bpe-dropout 0.7"),
        (True, 0.5, 0.5, None),
    ],
)
def test_only_more_dropout_than_the_run_had_is_proposed(
    jobs: Any, here: Path, merges: bool, dropout: float, bpe_dropout: float, options: str | None
) -> None:
    job = jobs(RISING)
    corpus = Corpus.build(here / "text.txt", "bpe:280", cache=here / "cache") if merges else job.corpus
    model = GPT(job.model.config.replace(dropout=dropout))
    config = job.config.replace(bpe_dropout=bpe_dropout)
    found = next_steps(replace(job, corpus=corpus, model=model, config=config))
    proposed = [command for command in commands(found) if "dropout" in command]
    assert proposed == ([] if options is None else [f"train text.txt {options}"])


def test_a_proposed_run_reads_and_scores_the_text_as_this_one(jobs: Any) -> None:
    asked = RunOptions.of({"minutes": 2, "encoding": "latin-1", "loss_on": "assistant"})
    found = next_steps(jobs(RISING, asked=asked))
    assert commands(found)[0] == "train text.txt MORE_TEXT --encoding latin-1 --loss-on assistant"


def test_flags_have_no_value_and_each_text_of_a_mixture_has_a_weight(jobs: Any, here: Path) -> None:
    asked = RunOptions.of({"minutes": 2, "mix": True, "deduplicate": True})
    found = next_steps(jobs(RISING, asked=asked, sources=(f"{here / 'text.txt'}=2",)))
    assert commands(found)[0] == "train text.txt=2 MORE_TEXT=1 --mix --deduplicate"


@pytest.mark.parametrize("reason", ["length", "early stop"])
def test_a_run_that_no_longer_improves_needs_more_text(jobs: Any, reason: str) -> None:
    found = next_steps(jobs(FLAT, reason=reason))
    assert found[0].text.startswith("no longer improving")
    assert commands(found)[0] == "train text.txt MORE_TEXT"


def test_a_run_that_stopped_early_may_have_improved_in_its_last_quarter(jobs: Any) -> None:
    job = jobs(FALLING, reason="early stop")
    found = next_steps(job)
    assert found[0].text == (
        "validation stopped improving, so the run ended early: 2.2000 to 2.0000 bits per byte in the last quarter of "
        "the steps, while the learning rate decayed; more minutes alone will not help"
    )
    assert commands(found)[0] == "train text.txt MORE_TEXT"
    constant = replace(job, config=job.config.replace(schedule="constant"))
    assert "in the last quarter of the steps; more minutes" in next_steps(constant)[0].text


def test_many_texts_are_not_listed_in_a_command(jobs: Any, here: Path) -> None:
    sources = tuple(str(here / f"{number}.txt") for number in range(100))
    proposed = commands(next_steps(jobs(RISING, sources=sources)))
    assert proposed[0] == "train TEXTS MORE_TEXT"
    assert proposed[-1] == "train TEXTS --from gpt2 --epochs 3"
    assert commands(next_steps(jobs(RISING, sources=sources[:9])))[0].startswith("train 0.txt 1.txt ")


def test_gpt2_is_proposed_for_a_short_english_text_only(jobs: Any) -> None:
    english = commands(next_steps(jobs(FALLING)))
    assert english[1:] == ["load-gpt2", "train text.txt --from gpt2 --epochs 3"]
    german = "Es war einmal ein König, der hatte eine Tochter, und die war so schön wie die Sonne. " * 300
    assert len(commands(next_steps(jobs(FALLING, german)))) == 1
    assert "GPT-2" not in texts(next_steps(jobs(FALLING, base="gpt2")))
    long = jobs(FALLING)
    assert "GPT-2" not in texts(next_steps(replace(long, corpus=replace(long.corpus, train_bytes=3_000_000))))
    assert "GPT-2" not in texts(next_steps(replace(long, corpus=replace(long.corpus, has_text=False))))


def test_a_text_from_a_pipe_is_in_no_command(jobs: Any) -> None:
    assert commands(next_steps(jobs(RISING, sources=("-",)))) == []


@pytest.mark.parametrize(
    ("settings", "asked", "suspected", "command"),
    [
        ({"learning_rate": 1.0}, {}, "the learning rate is too high: 1; runs of this size use 0.008:", ""),
        ({"learning_rate": 1e-9}, {}, "the learning rate is too low: 1e-09; runs of this size use 0.008:", ""),
        ({}, {"dropout": 0.99}, "--dropout 0.99 may be why; omit it:", ""),
        ({}, {"dropout": 0.99, "weight_decay": 0.1}, "--dropout 0.99 may be why; omit it:", " --weight-decay 0.1"),
        (
            {},
            {"weight_decay": 1e3, "batch_size": 1, "seed": 7},
            "--batch-size 1, --weight-decay 1000.0 may be why; omit them:",
            " --seed 7",
        ),
    ],
)
def test_a_run_that_learned_nothing_is_explained_by_its_settings_and_not_by_too_little_text(
    jobs: Any, settings: dict[str, Any], asked: dict[str, Any], suspected: str, command: str
) -> None:
    bits = [8.0, 8.1, 8.2, 8.3, 8.4]
    result = Result(step=300, reason="early stop", best_step=0, bits_per_byte=8.0, validation_loss=5.55)
    job = jobs(bits, asked=RunOptions.of({"minutes": 2} | settings | asked), result=result)
    config = job.config.replace(**{"optimizer": "muon", "learning_rate": 0.008} | settings)
    (step,) = next_steps(replace(job, config=config))
    assert step.text.startswith("the model has learned no more than how often each token occurs: its validation loss")
    assert step.text.endswith(suspected)
    assert commands([step]) == [f"train text.txt{command} --minutes 2"]


def test_a_run_that_learned_nothing_with_chosen_settings_is_not_told_to_change_them(jobs: Any) -> None:
    result = Result(step=300, reason="length", best_step=300, bits_per_byte=8.0, validation_loss=5.55)
    job = jobs([8.4, 8.3, 8.2, 8.1, 8.0], result=result)
    found = next_steps(replace(job, config=job.config.replace(optimizer="muon", learning_rate=0.008)))
    assert found[0].text.startswith("still improving")


def test_too_high_a_learning_rate_is_named_before_more_text(jobs: Any) -> None:
    job = jobs(RISING, asked=RunOptions.of({"learning_rate": 0.1}))
    found = next_steps(replace(job, config=job.config.replace(optimizer="muon", learning_rate=0.1)))
    assert found[1].text == "the learning rate is too high: 0.1; runs of this size use 0.008:"
    assert commands(found)[:2] == ["train text.txt --minutes 2", "train text.txt MORE_TEXT"]


def test_a_run_without_a_result_proposes_nothing(jobs: Any) -> None:
    assert next_steps(jobs(FALLING, result=None)) == []
    assert next_steps(jobs(FALLING, result=Result(step=0, reason="length"))) == []


@pytest.mark.parametrize(
    ("steps", "times", "longer"),
    [(10, "21% of it once", True), (150, "all of it 3.2 times", True), (300, "all of it 6.4 times", False)],
)
@pytest.mark.parametrize("bits", [2.2, None])
def test_without_a_trend_the_passes_over_the_text_decide(
    jobs: Any, steps: int, times: str, longer: bool, bits: float | None
) -> None:
    job = jobs([3.0, 2.2], result=Result(step=steps, reason="length", best_step=steps, bits_per_byte=bits))
    found = next_steps(job)
    assert found[0].text.startswith(f"the training text has 48.1 kB, and the run has read {times}: ")
    if longer:
        assert found[0].text.endswith("training longer helps most")
        assert found[1].text.startswith("continue to 8 minutes in total")
        assert commands(found)[0] == f"train --resume --name {job.run.directory.name} --minutes 8"
    else:
        assert commands(found)[0] == "train text.txt MORE_TEXT"
    assert commands(found)[-1].endswith("--from gpt2 --epochs 3")


def test_without_a_trend_a_run_that_stopped_early_is_not_continued(jobs: Any) -> None:
    result = Result(step=10, reason="early stop", best_step=10, bits_per_byte=2.2)
    found = next_steps(jobs([3.0, 2.2], result=result))
    assert commands(found)[0] == "train text.txt MORE_TEXT"
    assert "continue" not in texts(found)


@pytest.mark.parametrize(
    ("preset", "layers", "steps", "proposed"),
    [
        ("micro", 4, 10, "--minutes 2 --preset nano"),  # 16 parameters per byte
        ("nano", 4, 300, None),  # nothing is smaller
        ("nano", 1, 300, "--minutes 2 --preset micro"),
        ("nano", 1, 10, None),  # the text is not learned yet
        ("fine-tuned", 4, 300, None),
        (None, 4, 300, None),
    ],
)
def test_without_a_trend_another_size_of_the_model_is_proposed(
    jobs: Any, preset: str | None, layers: int, steps: int, proposed: str | None
) -> None:
    result = Result(step=steps, reason="length", best_step=steps, bits_per_byte=2.2)
    job = jobs([3.0, 2.2], preset=preset, result=result)
    if layers == 1:
        job = replace(job, model=GPT(job.model.config.replace(n_layer=1, n_embd=16)))
    sizes = [command for command in commands(next_steps(job)) if "--preset" in command]
    assert sizes == ([] if proposed is None else [f"train text.txt {proposed}"])


def test_without_a_trend_a_text_from_a_pipe_is_in_no_command(jobs: Any) -> None:
    result = Result(step=300, reason="length", best_step=300, bits_per_byte=2.2)
    found = next_steps(jobs([2.2], sources=("-",), preset="micro", result=result))
    assert [step.text.partition(": ")[2] for step in found] == ["more text of the same kind helps most"]
    assert commands(found) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2_000_000, "2000000"),
        (2e6, "2000000"),
        (0.1 + 0.2, "0.3"),
        (1e-7, "0.0000001"),
        (0.000316227766, "0.000316228"),
    ],
)
def test_a_proposed_number_has_no_exponent_and_is_never_rounded_to_zero(value: float, text: str) -> None:
    assert _number(value) == text
