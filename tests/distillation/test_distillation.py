"""Distilled runs: a teacher first, then the model that learns from it; stopped, resumed, moved and refused."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_wandb import Wandb
from typer.testing import CliRunner

import minigpt
from minigpt.cli.app import app
from minigpt.distillation.settings import DistillationSettings
from minigpt.distillation.teacher import TeacherTrained
from minigpt.errors import CheckpointError, ConfigError
from minigpt.reports.run_report import run_data
from minigpt.runs import job
from minigpt.runs.events import Started
from minigpt.storage.run import Run
from minigpt.storage.tensors import load_tensors
from minigpt.training.events import Evaluation, Finished, Sample, Step

SETTINGS: dict[str, Any] = {
    "n_layer": 1, "n_head": 2, "n_embd": 16, "context_length": 16, "batch_size": 4, "tokenizer": "bpe:270", "steps": 6,
    "eval_every": 2, "save_every": 1, "device": "cpu", "dtype": "float32", "dropout": 0.1, "distill": "on",
    "sample_every": 3, "bpe_dropout": 0.1,
}  # fmt: skip
TEACHER_STEPS = 3


@pytest.fixture(autouse=True)
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring takes longer than training here."""
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)


def fit(name: str, **settings: Any) -> Iterator[Any]:
    return minigpt.fit("fox.txt", name=name, report=False, **(SETTINGS | settings))


def state_of(directory: Path) -> dict[str, Any]:
    """Everything of both phases that must be equal, bit for bit, in two runs that learned the same."""
    run, teacher = Run.open(directory), Run.open(directory / "teacher")
    last = run.load_last()
    assert last is not None
    losses = [[line["loss"] for line in each.read_log() if "loss" in line] for each in (run, teacher)]
    weights = [(path / "model.safetensors").read_bytes() for path in (directory, directory / "teacher")]
    return {"tensors": {name: value.tolist() for name, value in last.tensors.items()}, "losses": losses, "w": weights}


def test_a_teacher_is_trained_first_and_only_its_weights_record_and_log_are_kept(here: Path) -> None:
    events = list(fit("fox"))
    phases = [type(event) for event in events if isinstance(event, Started | TeacherTrained | Finished)]
    assert phases == [Started, TeacherTrained, Started, Finished]
    first, second = (event for event in events if isinstance(event, Started))
    assert (first.is_teacher, first.total_steps, first.directory.name) == (True, TEACHER_STEPS, "teacher")
    assert (second.is_teacher, second.total_steps, second.directory.name) == (False, 6, "fox")
    between = next(index for index, event in enumerate(events) if isinstance(event, TeacherTrained))
    assert [event.step for event in events[:between] if isinstance(event, Step)] == [1, 2, 3]
    assert [event.step for event in events[between:] if isinstance(event, Step)] == [1, 2, 3, 4, 5, 6]
    assert not any(isinstance(event, Sample) for event in events[:between])
    assert events[-1].seconds > events[between].finished.seconds  # the time of both
    run, teacher = Run.open(here / "checkpoints/fox"), Run.open(here / "checkpoints/fox/teacher")
    assert run.record.training is not None
    assert teacher.record.training is not None
    assert DistillationSettings.of(run.record.training).distill == "on"
    assert DistillationSettings.of(teacher.record.training).distill == "off"
    assert teacher.record.training.seed == run.record.training.seed + 1
    assert list((teacher.directory / "last").iterdir()) == []
    assert not torch.equal(*(load_tensors(each.weights_path)[0]["transformer.wte.weight"] for each in (run, teacher)))


def test_only_the_model_is_evaluated_on_the_whole_held_out_text(here: Path) -> None:
    events = list(fit("fox", eval_tokens=32))
    taught = next(event.finished for event in events if isinstance(event, TeacherTrained))
    held_out = Run.open(here / "checkpoints/fox").record.corpus.validation_tokens
    assert held_out - 1 == events[-1].validation_tokens > 100
    assert taught.validation_tokens <= 48  # whole windows of 16 tokens


@pytest.mark.parametrize("stops", [(TEACHER_STEPS,), (2, 3, TEACHER_STEPS + 4)])
def test_a_run_that_is_stopped_and_resumed_in_either_phase_equals_an_uninterrupted_one(
    here: Path, stops: tuple[int, ...]
) -> None:
    list(fit("whole"))
    taken, resume = 0, {}
    for stop in stops:
        for event in fit("parts", **resume):
            taken += isinstance(event, Step)
            if isinstance(event, Step) and taken == stop:
                break
        resume = {"resume": True}
    list(fit("parts", resume=True))
    assert state_of(here / "checkpoints/parts") == state_of(here / "checkpoints/whole")


def test_a_run_left_between_its_phases_resumes_with_the_teacher_that_it_has(here: Path) -> None:
    list(fit("whole"))
    for event in fit("parts"):
        if isinstance(event, TeacherTrained):
            break
    events = list(fit("parts", resume=True))
    assert [event.is_teacher for event in events if isinstance(event, Started)] == [False]
    assert any("after its teacher, which is trained" in getattr(event, "text", "") for event in events)
    assert state_of(here / "checkpoints/parts") == state_of(here / "checkpoints/whole")


def test_a_teacher_whose_last_state_could_not_be_saved_continues_from_the_state_before(here: Path) -> None:
    list(fit("whole"))
    for event in fit("parts"):
        if isinstance(event, Step) and event.step == 2:
            break
    record = here / "checkpoints/parts/teacher/training.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"result": {"step": TEACHER_STEPS, "seconds": 9.0}}))
    events = list(fit("parts", resume=True))
    assert [event.is_teacher for event in events if isinstance(event, Started)] == [True, False]
    assert any("from step 2 of its teacher" in getattr(event, "text", "") for event in events)
    assert state_of(here / "checkpoints/parts") == state_of(here / "checkpoints/whole")


def test_a_length_that_the_teacher_has_used_up_is_refused(here: Path) -> None:
    for event in fit("fox", steps=None, minutes=1.0):
        if isinstance(event, TeacherTrained):
            break
    record = here / "checkpoints/fox/teacher/training.json"
    content = json.loads(record.read_text())
    record.write_text(json.dumps(content | {"result": content["result"] | {"seconds": 21.0}}))
    with pytest.raises(ConfigError, match=r"minutes \(0\.3\) counts from the start of checkpoints/fox, which has "):
        list(fit("fox", steps=None, minutes=0.3, resume=True))


def test_a_model_whose_teacher_is_in_training_is_noted_as_untrained_when_it_is_opened(here: Path) -> None:
    note = (
        "the weights in checkpoints/fox are still the initial ones, because its teacher is trained first; the teacher "
        "is the model checkpoints/fox/teacher"
    )
    for event in fit("fox"):
        if isinstance(event, Step) and event.step == 2:
            break
    assert note in minigpt.load(device="cpu").notes
    teacher = minigpt.load("checkpoints/fox/teacher", device="cpu")
    assert teacher.directory == Path("checkpoints/fox/teacher")
    assert note not in teacher.notes
    options = ["--max-new-tokens", "1", "--device", "cpu"]
    assert f"note: {note}" in CliRunner().invoke(app, ["generate", "the", *options]).stderr
    assert CliRunner().invoke(app, ["generate", "the", "--model", "checkpoints/fox/teacher", *options]).exit_code == 0
    list(fit("fox", resume=True))
    assert note not in minigpt.load("fox", device="cpu").notes


def test_a_finished_run_continues_to_a_longer_length_with_the_same_teacher(here: Path) -> None:
    list(fit("fox"))
    weights = (here / "checkpoints/fox/teacher/model.safetensors").read_bytes()
    events = list(fit("fox", resume=True, steps=12, patience=0))
    assert events[-1].step == 12
    assert (here / "checkpoints/fox/teacher/model.safetensors").read_bytes() == weights


def test_a_new_dropout_is_also_that_of_a_teacher_in_training(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for event in fit("fox"):
        if isinstance(event, Step):
            break
    models = []
    plain = job.loop.train
    monkeypatch.setattr(job.loop, "train", lambda model, *a, **k: models.append(model) or plain(model, *a, **k))
    list(fit("fox", resume=True, dropout=0.3, allow_change=True))
    assert [model.config.dropout for model in models] == [0.3, 0.3]
    assert [model.blocks[0].attention.dropout for model in models] == [0.3, 0.3]


def test_a_missing_teacher_is_an_error_that_says_how_to_go_on(here: Path) -> None:
    for event in fit("fox"):
        if isinstance(event, Evaluation) and event.step == 4:
            break
    shutil.rmtree(here / "checkpoints/fox/teacher")
    with pytest.raises(CheckpointError, match=r"teacher is missing.*--from fox"):
        list(fit("fox", resume=True))


def test_a_run_whose_folder_is_deleted_takes_its_teacher_along(here: Path) -> None:
    folder = here / "checkpoints/fox"
    path = folder / "teacher/model.safetensors"
    weights: dict[str, torch.Tensor] = {}
    for event in fit("fox"):
        if isinstance(event, Step) and event.step == 4:
            weights = {name: value.clone() for name, value in load_tensors(path)[0].items()}
            shutil.rmtree(folder)
    assert weights
    assert all(torch.equal(value, weights[name]) for name, value in load_tensors(path)[0].items())
    assert list(fit("fox", resume=True, steps=8, patience=0))[-1].step == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base": "fox", "distill": "on"}, r"distill \(on\) cannot be combined with --from"),
        ({"distill": "on", "sharding": "on"}, r"distill \(on\) cannot be combined with sharding \(on\)"),
        ({"distill": "on", "freeze": 1, "base": "fox"}, r"distill \(on\) cannot be combined with freeze \(1\)"),
        ({"distill": "on", "lora": True, "base": "fox"}, r"distill \(on\) cannot be combined with lora \(on\)"),
        ({"distill_weight": 0.3}, r"distill_weight \(0.3\) needs a teacher"),
        ({"distill": "of"}, r"distill \('of'\) must be"),
    ],
)
def test_settings_that_cannot_be_combined_are_refused(here: Path, settings: dict[str, Any], message: str) -> None:
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 16, "tokenizer": "bytes"}
    list(minigpt.fit("fox.txt", steps=1, context_length=16, batch_size=4, device="cpu", report=False, **shape))
    given = {"steps": 2, "context_length": 16, "batch_size": 4, "device": "cpu"} | settings
    with pytest.raises(ConfigError, match=message):
        minigpt.plan("fox.txt", **given, **({} if "base" in settings else shape))


def test_minutes_that_are_over_before_the_teacher_s_first_step_are_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "steps"}
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 1.0)
    with pytest.raises(ConfigError, match=r"minutes \(0.04\) are over before the first step of the teacher"):
        minigpt.plan("fox.txt", **settings, minutes=0.04)  # a third of it is less than a step
    with pytest.raises(ConfigError, match=r"minutes \(1e-05\) are over before the first step:"):
        minigpt.plan("fox.txt", **(settings | {"distill": "off"}), minutes=1e-5)


@pytest.mark.parametrize(("before", "after"), [("on", "off"), ("off", "on")])
def test_whether_there_is_a_teacher_never_changes(here: Path, before: str, after: str) -> None:
    list(fit("fox", distill=before))
    with pytest.raises(ConfigError, match=rf"distill \({after}\) cannot change on --resume: .*fox has {before}"):
        list(fit("fox", resume=True, distill=after, steps=12, allow_change=True))
    assert list(fit("fox", resume=True, distill="auto", steps=12, patience=0))[-1].step == 12


def test_train_in_python_takes_a_teacher_of_any_shape_with_the_same_vocabulary(here: Path) -> None:
    corpus = minigpt.Corpus.build("fox.txt", "bytes")
    shape = {"vocab_size": corpus.tokenizer.vocab_size, "n_positions": 16, "n_head": 2}
    wide, narrow = (minigpt.GPT(minigpt.GPTConfig(n_embd=n, n_layer=1, **shape)) for n in (32, 16))
    config = minigpt.TrainConfig(steps=2, batch_size=2, sample_every=0)
    before = [parameter.clone() for parameter in wide.parameters()]
    losses = [event.loss for event in minigpt.train(narrow, corpus, config, teacher=wide) if isinstance(event, Step)]
    assert len(losses) == 2
    assert all(torch.equal(*pair) for pair in zip(wide.parameters(), before, strict=True))
    with pytest.raises(ConfigError, match="needs a teacher"):
        next(minigpt.train(narrow, corpus, config.replace(distill="on")))
    other = minigpt.GPT(minigpt.GPTConfig(n_embd=16, n_layer=1, **(shape | {"vocab_size": 300})))
    with pytest.raises(ConfigError, match="the teacher's vocabulary has 300 tokens"):
        next(minigpt.train(narrow, corpus, config, teacher=other))
    short = minigpt.GPT(minigpt.GPTConfig(n_embd=16, n_layer=1, **(shape | {"n_positions": 8})))
    with pytest.raises(ConfigError, match=r"the teacher's n_positions \(8\) must be at least"):
        next(minigpt.train(narrow, corpus, config, teacher=short))


def test_the_command_line_says_both_phases_and_what_is_kept(here: Path) -> None:
    flags = [text for name, value in SETTINGS.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    result = CliRunner().invoke(app, ["train", "fox.txt", "--sampled-softmax", "50", *flags])
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    assert "trains a teacher for 0:0" in printed
    (softmax,) = [row for row in Run.open(here / "checkpoints" / "fox").record.other["plan"] if row[0] == "softmax"]
    assert re.fullmatch(r"about 50 of [\d,]+ tokens, sampled in each training step", softmax[1])
    figures = r"the teacher is trained \(3 steps in [\d:]+, [\d.]+ bits per byte on [\d,]+ held-out tokens\)"
    assert re.search(figures, printed)
    assert "in last/ and teacher/ for --resume" in printed
    record = json.loads((here / "checkpoints/fox/training.json").read_text())
    assert (record["training"]["distill"], record["training"]["distill_weight"]) == ("on", 0.5)


def test_the_report_shows_both_phases(here: Path) -> None:
    list(fit("fox"))
    data = run_data(here / "checkpoints/fox")
    assert data["teacher"]["validation"]["step"] == [0, 2, 3]
    assert data["teacher"]["state"] == "finished after 3 steps"
    assert [table["title"] for table in data["tables"]][-1] == "Teacher"


def train_with(wandb: Wandb, monkeypatch: pytest.MonkeyPatch) -> str:
    """Trains fox on the command line with this logger; returns what it printed on stderr, on one line."""
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    result = CliRunner().invoke(app, ["train", "fox.txt", "--name", "fox", "--no-report", "--log", "wandb", *options])
    assert result.exit_code == 0, result.output
    return " ".join(result.stderr.split())


def test_the_teacher_is_logged_as_a_separate_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Wandb()
    train_with(wandb, monkeypatch)
    assert [run["name"] for run in wandb.runs] == ["fox-teacher", "fox"]
    trained = [step for step, metrics in wandb.logged if "train/loss" in metrics]
    assert trained == [*range(1, TEACHER_STEPS + 1), *range(1, SETTINGS["steps"] + 1)]
    best = [step for step, metrics in wandb.logged if "best/bits_per_byte" in metrics]
    assert best == [TEACHER_STEPS, SETTINGS["steps"]]
    assert wandb.finished == 2


def test_a_logger_that_cannot_start_again_after_the_teacher_ends_no_training(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = Wandb()
    start = wandb.init

    def init(*, name: str, **given: Any) -> Wandb:
        if name == "fox":
            raise RuntimeError("no network")
        return start(name=name, **given)

    monkeypatch.setattr(wandb, "init", init)
    printed = train_with(wandb, monkeypatch)
    assert "--log wandb cannot start (no network); log in by" in printed
    assert "; training continues without it" in printed
    assert [run["name"] for run in wandb.runs] == ["fox-teacher"]
    assert Run.open(here / "checkpoints" / "fox").record.result is not None
