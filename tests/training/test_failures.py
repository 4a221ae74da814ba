"""Runs that diverge, run out of memory, cannot be saved, or are killed or stopped at an unfortunate moment."""

import dataclasses
import itertools
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import new_model, new_pair, new_run, new_train_step

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import CheckpointError, TrainingError
from minigpt.runs.saved_state import resume_point
from minigpt.storage.last_state import LastState
from minigpt.storage.run import Run
from minigpt.storage.tensors import TensorFile
from minigpt.training import loop
from minigpt.training.budget import Budget
from minigpt.training.clock import Control
from minigpt.training.evaluation import Evaluator, PeriodicEvaluation
from minigpt.training.events import Finished, Notice, Saved, Step
from minigpt.training.loop import train
from minigpt.training.loss import next_token_loss
from minigpt.training.memory import is_out_of_memory
from minigpt.training.progress import Progress
from minigpt.training.spike_detection import DivergedError, SpikeDetector
from minigpt.training.state import TrainingState
from minigpt.training.step import StepResult
from minigpt.training.world import World

CPU = torch.device("cpu")


def settings(**changes: Any) -> TrainConfig:
    base = TrainConfig(
        steps=10, batch_size=6, context_length=16, warmup_steps=2, learning_rate=1e-2, eval_every=3, sample_every=0,
        eval_tokens=200, weight_decay=0.0, device="cpu",
    )  # fmt: skip
    return base.replace(**changes)


def saved_step(run: Run) -> int:
    progress = run.last_progress()
    assert progress is not None
    return int(progress["step"])


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_restoring_the_first_state_clears_the_optimizer_states(corpus: Corpus, optimizer: str) -> None:
    train_step = new_train_step(new_model(), corpus, settings(optimizer=optimizer))
    state = TrainingState(train_step, corpus.fingerprint)
    first = state.capture(Progress())
    first = LastState({name: tensor.clone() for name, tensor in first.tensors.items()}, first.progress)
    train_step.step(0, 1e-2)
    assert any(state.optimizer_states().values())
    state.restore(first)
    assert not any(state.optimizer_states().values())


@pytest.mark.parametrize("name", ["blocks.0.mlp.up_proj.weight", "token_embedding.weight"])
def test_a_float16_overflow_changes_no_weight_and_halves_the_loss_scale(corpus: Corpus, name: str) -> None:
    model = new_model()
    train_step = new_train_step(model, corpus, settings(optimizer="muon"))
    train_step.loss_scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    hook = model.get_parameter(name).register_hook(lambda gradient: gradient * math.inf)
    (result,) = train_step.step(0, 1e-2)
    assert (result.skipped, result.loss_scale) == (True, 2.0)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    hook.remove()
    (result,) = train_step.step(1, 1e-2)
    assert (result.skipped, result.loss_scale) == (False, 2.0)
    assert not torch.equal(model.get_parameter(name), before[name])


def test_a_loss_scale_may_be_halved_many_times_in_a_row_until_it_is_below_one() -> None:
    progress = Progress(step=100)

    def record(result: StepResult) -> None:
        progress.record_result(skipped=result.skipped, overflowed=result.overflowed)

    def check(result: StepResult) -> None:
        result.check_divergence(progress.recovery.consecutive_skips)

    for step in range(20):
        result = StepResult(step, 1e-3, 2.0, math.inf, skipped=True, loss_scale=2.0 ** (16 - step))
        record(result)
        if result.loss_scale is not None and result.loss_scale < 1:
            break
        check(result)
    assert step == 17
    with pytest.raises(DivergedError, match=r"overflow at every loss scale, now 0\.5"):
        check(result)
    for step in range(5):
        result = StepResult(18 + step, 1e-3, math.nan, math.inf, skipped=True, loss_scale=64.0)
        record(result)
        if step < 4:
            check(result)
    with pytest.raises(DivergedError, match="loss nan, gradient norm inf; 5 steps in a row were skipped"):
        check(result)


def test_an_update_that_runs_out_of_memory_is_one_sentence(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    train_step = new_train_step(new_model(), corpus, settings())

    def out_of_memory() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(train_step.optimizers[0], "step", out_of_memory)
    with pytest.raises(TrainingError, match=r"out of memory on cpu in the optimizer's update; give a smaller --preset"):
        train_step.step(0, 1e-2)


@pytest.mark.parametrize(
    "message",
    [
        "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried",
        "CUDA error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "DefaultCPUAllocator: not enough memory: you tried to allocate 12 bytes.",
        "MPS backend out of memory (MPS allocated: 9 GB, other allocations: 1 GB, max allowed: 10 GB)",
    ],
)
def test_every_device_says_in_its_own_words_that_memory_ran_out(message: str) -> None:
    assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(RuntimeError("out of range"))


def test_an_evaluation_that_runs_out_of_memory_is_one_sentence(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    model, run = new_pair(tmp_path / "run")
    events = train(model, corpus, settings(), run)
    next(event for event in events if isinstance(event, Saved) and event.what == "last" and event.step == 3)
    monkeypatch.setattr("minigpt.training.evaluation.evaluate", out_of_memory)
    expected = r"^out of memory on cpu during evaluation; give a smaller .*; the state of step 3 is kept$"
    with pytest.raises(TrainingError, match=expected):
        list(events)
    assert saved_step(run) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Path.unlink, r"; no state is kept, because .*state\.safetensors is missing$"),
        (lambda path: path.write_bytes(b"damaged"), r"; no state is kept \(.*state\.safetensors .*\)$"),
    ],
    ids=["removed", "damaged"],
)
def test_no_message_says_that_a_state_is_kept_which_is_not_on_disk(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], Any], message: str
) -> None:
    model, run = new_pair(tmp_path / "run")
    events = train(model, corpus, settings(), run)
    next(event for event in events if isinstance(event, Saved) and event.what == "last" and event.step == 3)
    change(run.last_path)

    def lose_connection(*_: object, **__: object) -> None:
        raise TrainingError("process 1 of 2 lost the connection")

    monkeypatch.setattr("minigpt.training.evaluation.evaluate", lose_connection)
    with pytest.raises(TrainingError, match=f"^process 1 of 2 lost the connection{message}"):
        list(events)


def test_a_learning_rate_lowered_after_a_divergence_is_not_halved_again(corpus: Corpus, tmp_path: Path) -> None:
    model, run = new_pair(tmp_path / "run")
    flat = settings(schedule="constant", warmup_steps=0)
    list(train(model, corpus, flat.replace(steps=3), run))
    state = run.load_last()
    assert state is not None
    recovery = state.progress["recovery"]
    run.save_last(
        LastState(
            state.tensors, state.progress | {"recovery": recovery | {"learning_rate_factor": 0.25, "rollbacks": 2}}
        )
    )
    for rate, expected in ((flat.learning_rate, flat.learning_rate / 4), (1e-4, 1e-4)):
        events = train(new_model(), corpus, flat.replace(learning_rate=rate), run, resume=True)
        step = next(event for event in events if isinstance(event, Step))
        assert step.learning_rate == pytest.approx(expected)
        events.close()


def test_closing_the_events_before_the_first_one_unlocks_the_run(corpus: Corpus, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    events = train(new_model(), corpus, TrainConfig(steps=2, batch_size=2, context_length=8, device="cpu"), run)
    with pytest.raises(CheckpointError, match="by this process already"):
        Run.open(run.directory).lock()
    events.close()
    again = Run.open(run.directory)
    again.lock()
    again.unlock()


def test_gradients_of_several_processes_stay_in_ddps_buckets(corpus: Corpus) -> None:
    class Two(World):
        size = 2

        def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
            return [tensor, tensor]

    world = Two()
    for in_buckets, train_step in (
        (True, new_train_step(new_model(), corpus, settings(), world)),
        (False, new_train_step(new_model(), corpus, settings())),
    ):
        train_step.step(0, 1e-2)
        assert all(parameter.grad is None for parameter in train_step.parameters)
        train_step.step(1, 1e-2)
        kept = [parameter.grad for parameter in train_step.parameters]
        assert all(
            (gradient is not None and not gradient.any()) if in_buckets else gradient is None for gradient in kept
        )


@pytest.mark.parametrize("by_closing", [True, False])
def test_a_run_that_is_stopped_with_nan_weights_keeps_its_last_good_state(
    corpus: Corpus, tmp_path: Path, by_closing: bool
) -> None:
    model, control = new_model(), Control()
    run = new_run(tmp_path / "run", model, corpus.tokenizer)
    events = train(model, corpus, settings(), run, control=control)
    next(event for event in events if isinstance(event, Step) and event.step == 5)
    model.final_norm.weight.data.fill_(math.nan)
    if by_closing:
        events.close()
    else:
        control.stop = True
        (notice,) = [event.text for event in events if isinstance(event, Notice)]
        assert notice == "weights are NaN or infinite; not saved: the state of step 3 is kept"
    assert saved_step(run) == 3


def test_a_request_to_save_during_an_all_reduce_is_read_the_next_time(corpus: Corpus, tmp_path: Path) -> None:
    control = Control()

    class RequestingWorld(World):
        reductions = 0

        def all_reduce_max(self, values: Sequence[float]) -> list[float]:
            if len(values) == 3:
                self.reductions += 1
                if self.reductions == 6:
                    control.save = True  # a signal arrives
            return list(values)

    model, run = new_pair(tmp_path / "run")
    steps = [
        event.step
        for event in train(
            model, corpus, settings(eval_every=100, save_every=100), run, control=control, world=RequestingWorld()
        )
        if isinstance(event, Saved) and event.what == "last"
    ]
    assert len(steps) == 3
    assert 0 == steps[0] < steps[1] < steps[2] == 10


def test_a_run_that_continues_before_its_cool_down_rolls_back_no_further_than_there(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, run = new_pair(tmp_path / "run")
    list(train(model, corpus, settings(steps=20, schedule="trapezoid", cooldown=0.5), run))
    assert saved_step(run) == 20
    longer = settings(steps=40, schedule="trapezoid", cooldown=0.5, eval_every=100)
    events = train(model, corpus, longer, run, resume=True)
    next(event for event in events if isinstance(event, Step) and event.step == 11)
    assert saved_step(run) == 10  # saved at once: the run can only roll back to there
    calls = iter(range(1000))
    monkeypatch.setattr(
        "minigpt.training.loss.next_token_loss",
        lambda *rest, **options: next_token_loss(*rest, **options) * (math.nan if next(calls) < 5 else 1.0),
    )
    back = next(event for event in events if isinstance(event, Notice) and "diverged" in event.text)
    assert "after step 16" in back.text
    assert "resumed from step 10 with 0.5" in back.text


def test_the_start_of_an_earlier_cool_down_does_not_replace_one_that_could_not_be_saved(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CheckpointError("no space left on device")

    model, run = new_pair(tmp_path / "run")
    config = settings(steps=20, schedule="trapezoid", cooldown=0.5)
    list(train(model, corpus, config, run))
    with monkeypatch.context() as full:
        full.setattr(Run, "save_before_cooldown", refuse)
        events = list(train(model, corpus, config.replace(steps=40), run, resume=True))
    assert any("training continues without it" in event.text for event in events if isinstance(event, Notice))
    before = run.before_cooldown_progress()
    assert before is not None
    assert (before["step"], saved_step(run)) == (10, 40)
    longer = config.replace(steps=80)
    point = resume_point(run, Budget(longer, 80))
    assert point is not None
    assert point.step == 40
    first, *events = train(model, corpus, longer, run, resume=True)
    assert isinstance(first, Notice)
    assert first.text.startswith("the state from before the learning rate decayed is missing")
    assert [event.step for event in events if isinstance(event, Step)] == list(range(41, 81))


def test_a_sample_of_a_run_that_diverges_rolls_it_back_as_an_evaluation_does(corpus: Corpus, tmp_path: Path) -> None:
    model, run = new_pair(tmp_path / "run")
    config = settings(steps=100, learning_rate=1e20, sample_every=2, eval_every=1000)
    notices: list[str] = []
    events = train(model, corpus, config, run)
    with pytest.raises(TrainingError, match=r"the state of step 0 is kept; lower --learning-rate"):
        notices.extend(event.text for event in events if isinstance(event, Notice))
    rollbacks = [text for text in notices if "diverged" in text]
    assert len(rollbacks) == 3
    assert "no sample could be drawn: the model's logits must be finite" in rollbacks[0]


def test_best_weights_saved_just_before_a_kill_are_not_overwritten_by_worse_ones(
    corpus: Corpus, tmp_path: Path
) -> None:
    model, run = new_pair(tmp_path / "run")
    events = train(model, corpus, settings(), run)
    next(event for event in events if isinstance(event, Saved) and event.what == "last" and event.step == 3)
    events.close()
    ahead, again = new_model(seed=1), new_model()
    run.save_best(ahead, 5, 0.001)  # and then the run was killed before it saved its state
    *_, finished = train(again, corpus, settings(), run, resume=True)
    assert isinstance(finished, Finished)
    assert finished.best_step == 5
    assert torch.equal(again.token_embedding.weight, ahead.token_embedding.weight)
    with TensorFile(run.directory / "model.safetensors") as file:
        assert file.metadata["step"] == "5"


def test_a_run_that_continues_before_its_cool_down_keeps_best_weights_that_are_newer_than_its_state(
    corpus: Corpus, tmp_path: Path
) -> None:
    model, run = new_pair(tmp_path / "run")
    config = settings(steps=20, schedule="trapezoid", cooldown=0.5)
    list(train(model, corpus, config, run))
    run.save_best(model, 19, 0.001)  # and then the run was killed before it saved its state
    notice, *_, finished = train(new_model(), corpus, config.replace(steps=40), run, resume=True)
    assert isinstance(notice, Notice)
    assert "continues from step 10 and keeps its best weights (step 19)" in notice.text
    assert isinstance(finished, Finished)
    assert finished.best_step == 19
    with TensorFile(run.directory / "model.safetensors") as file:
        assert file.metadata["step"] == "19"


def test_best_weights_that_are_evaluated_again_after_a_kill_are_saved_again(corpus: Corpus, tmp_path: Path) -> None:
    model, run = new_pair(tmp_path / "run")
    events = train(model, corpus, settings(), run)
    next(event for event in events if isinstance(event, Saved) and event.what == "last" and event.step == 3)
    state = run.last_path.read_bytes()
    next(event for event in events if isinstance(event, Saved) and event.what == "best" and event.step == 6)
    events.close()
    run.last_path.write_bytes(state)  # killed between the best weights of step 6 and their state
    saved = [event for event in train(new_model(), corpus, settings(), run, resume=True) if isinstance(event, Saved)]
    assert (6, "best") in [(event.step, event.what) for event in saved]


def test_if_another_process_cannot_compile_this_one_does_not_either(corpus: Corpus) -> None:
    class Other(World):
        def all_reduce_max(self, values: Sequence[float]) -> list[float]:
            return [max(value, 1.0) for value in values]

    train_step = new_train_step(new_model(), corpus, settings(), world=Other())
    plain = train_step.parts.loss.features
    compiled: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda function: compiled.append(function) or function.__call__)
        assert train_step.compile() == "on another process"
    assert compiled == [plain]
    assert train_step.parts.loss.features == plain


def test_the_final_evaluation_reads_no_more_than_the_budget_allows(
    corpus: Corpus,
) -> None:
    config = settings(minutes=0.01, steps=None, eval_tokens=20)
    evaluator = Evaluator(new_model(), corpus, config, torch.float32, World())
    assert evaluator.final_seconds() == 0
    evaluator.assume_duration(0.2)  # for 20 tokens: a tenth of the 0.6 seconds is enough for 6
    measured = evaluator.evaluate_finally()
    assert measured is not None
    assert measured.tokens <= 32 < len(corpus.validation)


def test_the_final_evaluation_is_expected_to_be_as_fast_as_the_others_without_what_they_saved(corpus: Corpus) -> None:
    config = settings(minutes=10, steps=None, eval_tokens=16)
    evaluator, now = Evaluator(new_model(), corpus, config, torch.float32, World()), 100.0
    evaluate = evaluator.evaluate

    def seconds(count: float) -> None:
        nonlocal now
        now += count

    def synchronize(progress: Progress) -> None:
        progress.seconds = now

    durations = iter([2.0, 4.0])
    evaluator.evaluate = lambda: (seconds(next(durations)), evaluate())[1]  # type: ignore[method-assign]
    checkpointer = SimpleNamespace(
        save_best=lambda progress, loss: seconds(50), is_saving=False, log=lambda record: None,
        take_notices=lambda step: [],
    )  # fmt: skip
    periodic = PeriodicEvaluation(
        evaluator, checkpointer, Budget(config, None), SimpleNamespace(synchronize=synchronize),
        SpikeDetector(8.0, 257, CPU),
    )  # type: ignore[arg-type]  # fmt: skip
    progress = Progress()
    list(periodic.evaluate(progress))
    assert progress.evaluation.duration == 52
    progress.step, now = 9, 5_000.0
    list(periodic.evaluate(progress))
    assert progress.evaluation.duration == 4  # no better than before, so nothing was saved
    n_read = evaluator._tokens / 2
    assert evaluator.final_seconds() == pytest.approx((2 + 4) / 2 / n_read * len(corpus.validation))
    assert progress.budget.closing_seconds == pytest.approx(4 + evaluator.final_seconds())
    expected = evaluator.final_seconds()
    evaluator.assume_duration(52)  # after a state is restored, which was saved with weights
    assert evaluator.final_seconds() == expected


@pytest.mark.parametrize("schedule", ["cosine", "trapezoid"])
def test_a_run_in_minutes_saves_its_last_state_even_if_its_last_evaluation_was_fast(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    losses, closing = iter(range(1, 1000)), (max(0.01, 0.8 - 0.03 * count) for count in itertools.count())
    evaluate = Evaluator._evaluate

    def ever_worse(self: Evaluator, max_tokens: int | None) -> Any:
        measured = evaluate(self, max_tokens)
        assert measured is not None
        return dataclasses.replace(measured, loss=float(next(losses)))

    monkeypatch.setattr(Evaluator, "_evaluate", ever_worse)
    monkeypatch.setattr(Evaluator, "final_seconds", lambda _: next(closing))
    model, run = new_pair(tmp_path / "run")
    config = settings(steps=None, minutes=0.03, save_every=10**6, eval_every=None, schedule=schedule, patience=0)
    *_, finished = train(model, corpus, config, run)
    assert isinstance(finished, Finished)
    assert saved_step(run) == finished.step


def test_tokens_are_counted_over_batches_of_different_sizes(corpus: Corpus, tmp_path: Path) -> None:
    model, run = new_pair(tmp_path / "run")
    list(train(model, corpus, settings(steps=4, schedule="constant"), run))
    events = train(model, corpus, settings(steps=6, schedule="constant", batch_size=12), run, resume=True)
    counted = [event.tokens for event in events if isinstance(event, Step)]
    assert counted == [4 * 6 * 16 + 12 * 16, 4 * 6 * 16 + 2 * 12 * 16]


SCRIPT = """
import sys
from pathlib import Path
from minigpt import GPT, Corpus, GPTConfig, TrainConfig, train
from minigpt.storage.run import Run
corpus = Corpus.load(sys.argv[1])
model = GPT(GPTConfig(vocab_size=257, n_positions=16, n_embd=16, n_layer=2, n_head=2))
run = Run.create(Path(sys.argv[2]), model, corpus.tokenizer, {})
config = TrainConfig(steps=100, batch_size=6, context_length=16, sample_every=0, eval_every=50, device="cpu")
events = train(model, corpus, config, run)
for event in events:
    if event.step == 7:
        break
"""


def test_a_script_that_ends_in_the_middle_of_a_run_saves_it(corpus: Corpus, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(corpus.path), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert saved_step(Run.open(tmp_path / "run")) == 7


def test_at_interpreter_shutdown_one_failed_save_does_not_prevent_the_others(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, unfinished = [], []
    for name in ("first", "full", "last"):
        model = new_model()
        runs.append(new_run(tmp_path / name, model, corpus.tokenizer))
        unfinished.append(train(model, corpus, settings(), runs[-1]))
        next(event for event in unfinished[-1] if isinstance(event, Step) and event.step == 5)

    def disk_full(*_: object) -> Path:
        raise CheckpointError("no space left on device")

    monkeypatch.setattr(runs[1], "save_last", disk_full)
    with pytest.raises(ExceptionGroup, match="could not be saved") as caught:
        loop._close_all()
    assert [str(error) for error in caught.value.exceptions] == ["no space left on device"]
    assert [saved_step(run) for run in runs] == [5, 3, 5]


def test_a_loss_far_above_a_uniform_guess_is_a_spike_from_the_second_step_on() -> None:
    detector, norm = SpikeDetector(8.0, 257, CPU), torch.tensor(1.0)
    losses = [20.0, 5.6, 12.0, 25.0]  # a model that began badly; twice the mean of 12.8 is 25.6
    assert not any(detector.observe(torch.tensor(loss), norm) for loss in losses)
    detector.reset()
    skipped = [bool(detector.observe(torch.tensor(loss), norm)) for loss in (5.6, 11.0, 18.0, 5.0)]
    assert skipped == [False, False, True, False]
    off = SpikeDetector(0.0, 257, CPU)
    assert not any(off.observe(torch.tensor(loss), norm) for loss in (5.6, 1e9))


def test_a_high_validation_loss_is_a_divergence_only_where_the_training_loss_is_high_too() -> None:
    detector, norm = SpikeDetector(8.0, 257, CPU), torch.tensor(1.0)
    detector.observe(torch.tensor(0.1), norm)
    detector.check_validation_loss(50.0, 2.0)  # the model has memorized its training text
    detector.reset()
    detector.observe(torch.tensor(9.0), norm)
    with pytest.raises(DivergedError, match=r"validation loss is 50\.0000, far above the 5\.5491 of a uniform guess"):
        detector.check_validation_loss(50.0, 2.0)
