"""`minigpt.plan`, `fit`, `load` and `show`, and runs that go between Python and the command line."""

import doctest
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model
from typer.testing import CliRunner

import minigpt
from minigpt.cli.app import app
from minigpt.errors import CheckpointError, ConfigError, MinigptError
from minigpt.storage.run import Run
from minigpt.training import loop
from minigpt.training.clock import Control
from minigpt.training.evaluation import Evaluator
from minigpt.training.events import Activity

SETTINGS: dict[str, Any] = {
    "n_layer": 1, "n_head": 2, "n_embd": 16, "context_length": 16, "batch_size": 4, "tokenizer": "bytes", "steps": 6,
    "eval_every": 3, "device": "cpu", "dtype": "float32", "dropout": 0.1,
}  # fmt: skip
FLAGS = [text for name, value in SETTINGS.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def typed(*arguments: str) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def state_of(directory: Path) -> dict[str, Any]:
    """Everything that must be equal, bit for bit, in two runs that learned the same."""
    run = Run.open(directory)
    last = run.load_last()
    assert last is not None
    losses = [line["loss"] for line in run.read_log() if "loss" in line]
    best = (directory / "model.safetensors").read_bytes()
    return {"tensors": {name: value.tolist() for name, value in last.tensors.items()}, "losses": losses, "best": best}


@pytest.mark.parametrize(
    "function",
    [minigpt.plan, minigpt.fit, minigpt.load, minigpt.Model.generate, minigpt.Model.stream, minigpt.show,
     minigpt.Corpus.from_texts, minigpt.Corpus.from_tokens],
)  # fmt: skip
@pytest.mark.usefixtures("steady_plans")
def test_the_example_of_every_function_works(here: Path, function: Any) -> None:
    if "load" in function.__module__:
        list(minigpt.fit("corpus.txt", preset="nano", steps=1, device="cpu", report=False))
    (example,) = doctest.DocTestFinder(recurse=False).find(function, function.__name__, globs={"minigpt": minigpt})
    assert example.examples
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)


# Plans


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"lr": 0.1}, "unknown setting 'lr'; see minigpt train --help"),
        ({"learning_rat": 0.1}, "unknown setting 'learning_rat'; did you mean 'learning_rate'?"),
        ({"steps": 0}, r"steps \(0\) must be at least 1"),
        ({"steps": 3, "minutes": 1.0}, "steps cannot be combined with minutes"),
        ({"batch_size": 3, "batch_tokens": 48}, r"batch_size \(3\) cannot be combined with batch_tokens \(48\)"),
        ({"preset": "huge"}, "must be one of"),
        ({"base": "gpt2", "n_layer": 3}, "cannot be chosen when fine-tuning"),
        ({"name": "a/b"}, "must be a plain folder name"),
        ({"name": Path("a")}, r"name \(.*Path\('a'\)\) must be a string"),
        ({"base": 5}, r"from \(5\) must be a string or a path"),
        ({"preset": 1}, r"preset \(1\) must be a string"),
        ({"tokenizer": 4096}, r"tokenizer \(4096\) must be a string, as in 'bpe:4096'"),
        ({"tokenizer": minigpt.Tokenizer.named("bytes")}, r"tokenizer \(<.*Tokenizer.*>\) must be a string"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_read(
    here: Path, settings: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        minigpt.fit("missing.txt", **settings)


# Runs


def test_a_run_of_python_is_the_run_of_the_command_line_bit_for_bit(here: Path) -> None:
    events = list(minigpt.fit("fox.txt", name="python", **SETTINGS))
    typed("train", "fox.txt", "--name", "typed", *FLAGS)
    folders = [here / "checkpoints" / name for name in ("python", "typed")]
    assert state_of(folders[0]) == state_of(folders[1])
    records = [json.loads((folder / "training.json").read_text()) for folder in folders]
    for record in records:
        del record["started"], record["number"], record["result"]["seconds"]
    assert records[0] == records[1]
    names = [{path.name for path in folder.iterdir()} for folder in folders]
    assert names[0] == names[1]
    kinds = [type(event) for event in events if not isinstance(event, Activity | minigpt.Notice)]
    assert kinds[:2] == [minigpt.Planned, minigpt.Started]
    assert kinds[-1] is minigpt.Finished
    assert {minigpt.Step, minigpt.Evaluation, minigpt.Sample, minigpt.Saved} <= set(kinds)


def stop_after(events: Any, step: int) -> None:
    """Leaves the loop over the events, as a user does who breaks it off."""
    for event in events:
        if isinstance(event, minigpt.Step) and event.step == step:
            break
    events.close()


def test_a_run_begun_in_python_is_resumed_by_the_command_line_bit_for_bit(here: Path) -> None:
    list(minigpt.fit("fox.txt", name="undisturbed", report=False, **SETTINGS))
    stop_after(minigpt.fit("fox.txt", name="fox", report=False, **SETTINGS), 3)
    result = typed("train", "fox.txt", *FLAGS, "--resume")
    assert "resuming checkpoints/fox from step" in result.stderr
    assert state_of(here / "checkpoints/fox") == state_of(here / "checkpoints/undisturbed")


def test_a_run_begun_by_the_command_line_is_resumed_in_python_bit_for_bit(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = loop.train

    def stopping(*arguments: Any, control: Control, **options: Any) -> Iterator[Any]:
        for event in train(*arguments, control=control, **options):
            yield event
            control.stop = control.stop or (isinstance(event, minigpt.Step) and event.step == 3)

    typed("train", "fox.txt", "--name", "undisturbed", *FLAGS)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "train", stopping)
        stopped = CliRunner().invoke(app, ["train", "fox.txt", *FLAGS])
    assert stopped.exit_code == 128 + signal.SIGTERM
    assert "stopped: step" in stopped.stderr
    events = list(minigpt.fit("fox.txt", resume=True, report=False, **SETTINGS))
    (started,) = (event for event in events if isinstance(event, minigpt.Started))
    assert 3 <= started.step < 6
    assert state_of(here / "checkpoints/fox") == state_of(here / "checkpoints/undisturbed")


def test_a_stop_request_saves_and_the_newest_run_continues_without_its_text(here: Path) -> None:
    control = Control()
    for event in minigpt.fit("fox.txt", control=control, **SETTINGS):
        control.stop = control.stop or isinstance(event, minigpt.Step)
    assert not isinstance(event, minigpt.Finished)
    *_, finished = minigpt.fit(resume=True, steps=8)
    assert isinstance(finished, minigpt.Finished)
    assert finished.step == 8
    with pytest.raises(ConfigError, match=r"learning_rate .* cannot change on --resume without --allow-change"):
        list(minigpt.fit(resume=True, steps=9, learning_rate=0.5))
    notices = [
        event.text
        for event in minigpt.fit(resume=True, steps=9, learning_rate=0.5, allow_change=True, report=False)
        if isinstance(event, minigpt.Notice)
    ]
    assert any(text.startswith("learning_rate changes from ") for text in notices)


def test_what_a_plan_expected_is_kept_for_its_length_only(here: Path) -> None:
    list(minigpt.fit("fox.txt", **SETTINGS))
    Run.open(here / "checkpoints/fox").update(expected=(2.0, 2.4))
    list(minigpt.fit(resume=True, steps=8, report=False))
    assert Run.open(here / "checkpoints/fox").record.expected is None
    Run.open(here / "checkpoints/fox").update(expected=(2.0, 2.4), result=None)
    for event in minigpt.fit(resume=True, steps=10, report=False):
        if isinstance(event, minigpt.Step):
            break
    Run.open(here / "checkpoints/fox").update(expected=(2.0, 2.4))
    list(minigpt.fit(resume=True, report=False))
    assert Run.open(here / "checkpoints/fox").record.expected == (2.0, 2.4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "cuda:99"}, r"device \('cuda:99'\) is not on this machine"),
        ({"dtype": "float16", "allow_change": True}, r"dtype \('float16'\) needs a GPU"),
    ],
)
def test_a_resume_that_cannot_run_leaves_the_run_as_it_was(here: Path, changes: dict[str, Any], message: str) -> None:
    list(minigpt.fit("fox.txt", **SETTINGS))
    record = (here / "checkpoints/fox/training.json").read_bytes()
    with pytest.raises(MinigptError, match=message):
        list(minigpt.fit(resume=True, steps=8, **changes))
    assert (here / "checkpoints/fox/training.json").read_bytes() == record
    *_, finished = minigpt.fit(resume=True, steps=8)
    assert isinstance(finished, minigpt.Finished)


def test_leaving_before_the_first_step_unlocks_the_run(here: Path) -> None:
    events = minigpt.fit("fox.txt", **SETTINGS)
    assert any(isinstance(event, minigpt.Started) for event in events)
    run = Run.open(here / "checkpoints/fox")
    with pytest.raises(CheckpointError, match="is being trained"):
        run.lock()
    events.close()  # type: ignore[attr-defined]
    run.lock()
    run.unlock()


def test_an_end_that_cannot_be_saved_yields_its_result_and_then_raises(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_run: Run, **_parts: Any) -> None:
        raise CheckpointError("training.json could not be written (no space left on device)")

    monkeypatch.setattr(Run, "update", full)
    events = minigpt.fit("fox.txt", report=False, **SETTINGS)
    assert any(isinstance(event, minigpt.Finished) for event in events)
    with pytest.raises(CheckpointError, match="no space left on device"):
        next(events)


def test_closing_the_events_raises_if_the_last_state_cannot_be_saved(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Path:
        raise CheckpointError("last/state.safetensors could not be written (no space left on device)")

    events = minigpt.fit("fox.txt", report=False, **SETTINGS)
    for event in events:
        if isinstance(event, minigpt.Step) and event.step == 2:
            break
    monkeypatch.setattr(Run, "save_last", full)
    with pytest.raises(CheckpointError, match="no space left on device"):
        events.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("base", ["base", Path("checkpoints/base")])
def test_fine_tuning_starts_from_another_run(here: Path, base: str | Path) -> None:
    list(minigpt.fit([Path("fox.txt")], name="base", report=False, **SETTINGS))
    *_, finished = minigpt.fit("fox.txt", base=base, name="tuned", steps=2, device="cpu", report=False)
    assert isinstance(finished, minigpt.Finished)
    assert Run.open(here / "checkpoints/tuned").record.base == "checkpoints/base"


def test_a_plan_of_fine_tuning_starts_from_the_base_model_each_time(here: Path) -> None:
    list(minigpt.fit("fox.txt", name="base", report=False, **SETTINGS))
    plan = minigpt.plan("fox.txt", base="base", name="tuned", steps=3, learning_rate=0.01, device="cpu")
    runs = [list(minigpt.fit(plan, report=False)) for _ in range(2)]
    losses = [[event.loss for event in events if isinstance(event, minigpt.Step)] for events in runs]
    assert len(losses[0]) == 3
    assert losses[0] == losses[1]


def test_python_respects_a_containers_cpu_quota(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("minigpt.threads.available_cores", lambda: 1)
    uses: list[Callable[[], object]] = [
        lambda: minigpt.plan("fox.txt", **SETTINGS),
        lambda: list(minigpt.fit("fox.txt", report=False, **SETTINGS)),
        lambda: minigpt.load("fox"),
    ]
    before = torch.get_num_threads()
    try:
        for use in uses:
            torch.set_num_threads(2)
            use()
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    environment = Run.open(here / "checkpoints/fox").record.environment
    assert environment is not None
    assert environment.threads == 1


# The display


def test_show_draws_what_the_command_line_draws_and_returns_the_last_event(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = minigpt.show(minigpt.fit("fox.txt", report=False, **SETTINGS))
    assert isinstance(finished, minigpt.Finished)
    printed = capsys.readouterr().err
    for text in ("checkpoints/fox", "--learning-rate", "validation loss", "best so far, saved", "sample at step 6"):
        assert text in printed
    assert minigpt.show(iter(())) is None


# Models


def test_a_loaded_model_generates_what_the_command_line_prints(here: Path) -> None:
    list(minigpt.fit("fox.txt", report=False, **SETTINGS))
    model = minigpt.load("fox", device="cpu")
    assert (model.directory, model.config.n_layer, model.tokenizer.name) == (Path("checkpoints/fox"), 1, "bytes")
    assert isinstance(model.model, minigpt.GPT)
    text = model.generate("the ", max_new_tokens=20, seed=3)
    assert "".join(model.stream("the ", max_new_tokens=20, seed=3)) == text
    options = ["--max-new-tokens", "20", "--seed", "3", "--device", "cpu"]
    printed = typed("generate", "the ", "--model", "fox", *options, "--json").stdout
    assert json.loads(printed)["text"] == text
    assert model.generate("the ", max_new_tokens=20, seed=3, stop=text[3:5]) == text[:3]
    several = model.generate(["the ", "a "], max_new_tokens=20, temperature=0)
    assert several == [model.generate(prompt, max_new_tokens=20, temperature=0) for prompt in ("the ", "a ")]
    assert model.generate([[116, 104], "a"], max_new_tokens=1, temperature=0)[0] == model.generate(
        "th", max_new_tokens=1, temperature=0
    )
    assert minigpt.load().directory == model.directory
    assert minigpt.load(here / "checkpoints/fox", quantize="none").generate("a", max_new_tokens=1, temperature=0)


def test_a_loaded_model_passes_the_callers_logits_processors_on(here: Path) -> None:
    def only_letters(logits: torch.Tensor, _history: torch.Tensor, _n_new: int) -> torch.Tensor:
        allowed = torch.zeros(logits.shape[1], dtype=torch.bool)
        allowed[ord("a") : ord("z") + 1] = True
        return logits.masked_fill(~allowed, -torch.inf)

    minigpt.save_checkpoint(here / "checkpoints/m", new_model(), minigpt.Tokenizer.named("bytes"))
    model = minigpt.load("m", device="cpu")
    text = model.generate("the ", max_new_tokens=20, seed=3, processors=[only_letters])
    assert (len(text), text.isalpha()) == (20, True)
    assert "".join(model.stream("the ", max_new_tokens=20, seed=3, processors=[only_letters])) == text


@pytest.mark.parametrize("quantize", [None, False, "int4"])
def test_an_unknown_quantization_is_refused(here: Path, quantize: Any) -> None:
    minigpt.save_checkpoint(here / "checkpoints/m", new_model(), minigpt.Tokenizer.named("bytes"))
    with pytest.raises(ConfigError, match=rf"^quantize \({quantize!r}\) must be auto, none or int8$"):
        minigpt.load("m", device="cpu", quantize=quantize)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"temprature": 1}, "unknown sampling setting 'temprature'"),
        ({"temperature": -1.0}, r"temperature \(-1.0\) must be at least 0"),
        ({"samples": 2}, r"samples \(2\) must be 1 here"),
        ({"stop": None}, r"stop \(None\) must be a tuple of strings"),
    ],
)
def test_wrong_sampling_settings_are_refused_at_once(here: Path, sampling: dict[str, Any], expected: str) -> None:
    minigpt.save_checkpoint(here / "checkpoints/m", new_model(), minigpt.Tokenizer.named("bytes"))
    with pytest.raises(ConfigError, match=expected):
        minigpt.load("m").stream("the", **sampling)


def test_functions_of_the_module_name_it_if_they_get_the_loaded_model(here: Path) -> None:
    minigpt.save_checkpoint(here / "checkpoints/m", new_model(), minigpt.Tokenizer.named("bytes"))
    loaded, config = minigpt.load("m", device="cpu"), minigpt.SamplingConfig()
    model: Any = loaded
    uses: list[Callable[[], object]] = [
        lambda: minigpt.evaluate(model, [1, 2, 3]),
        lambda: next(minigpt.generate(model, torch.tensor([[1]]), config)),
        lambda: next(minigpt.generate_text(model, loaded.tokenizer, "a", config)),
    ]
    for use in uses:
        with pytest.raises(ConfigError, match=r"not a Model; give minigpt\.load\(\.\.\.\)\.model"):
            use()


def test_a_handler_of_ctrl_c_that_python_did_not_install_stays(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(signal, "getsignal", lambda _: None)
        patch.setattr(signal, "signal", lambda *_: pytest.fail("a handler was installed"))
        *_, finished = minigpt.fit("fox.txt", report=False, **SETTINGS)
    assert isinstance(finished, minigpt.Finished)


def test_ctrl_c_during_the_last_evaluation_keeps_the_result(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate_finally = Evaluator.evaluate_finally

    def press_ctrl_c(evaluator: Evaluator) -> Any:
        signal.raise_signal(signal.SIGINT)
        return evaluate_finally(evaluator)

    events: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "evaluate_finally", press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            events.extend(minigpt.fit("fox.txt", name="late", **SETTINGS))
    assert isinstance(events[-1], minigpt.Finished)


def test_ctrl_c_during_a_step_of_fit_saves_and_then_interrupts(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(minigpt.fit("fox.txt", name="whole", **SETTINGS))
    schedule = loop.learning_rate

    def press_ctrl_c(step: int, *rest: Any) -> float:
        if step == 3:
            signal.raise_signal(signal.SIGINT)
        return schedule(step, *rest)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "learning_rate", press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            list(minigpt.fit("fox.txt", name="interrupted", **SETTINGS))
    assert signal.getsignal(signal.SIGINT) == before
    progress = Run.open(here / "checkpoints" / "interrupted").last_progress()
    assert progress is not None
    assert progress["step"] == 4  # the step is finished first
    list(minigpt.fit("fox.txt", name="interrupted", resume=True))
    assert state_of(here / "checkpoints" / "interrupted") == state_of(here / "checkpoints" / "whole")
