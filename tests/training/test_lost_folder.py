"""A run whose folder is deleted, moved or replaced while it trains continues in a new folder that can be opened."""

import dataclasses
import itertools
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model, new_run

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import CheckpointError, TrainingError
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.run import Run
from minigpt.storage.tensors import TensorFile
from minigpt.training.evaluation import Evaluator
from minigpt.training.events import Event, Finished, Notice, Saved, Step
from minigpt.training.loop import train

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows refuses to remove a folder that is in use")

CONFIG = TrainConfig(
    steps=8, batch_size=4, context_length=16, eval_every=2, sample_every=0, eval_tokens=100, device="cpu",
)  # fmt: skip


def delete(run: Run) -> None:
    shutil.rmtree(run.directory)


def move(run: Run) -> None:
    run.directory.rename(run.directory.with_name("elsewhere"))


def replace(run: Run) -> None:
    delete(run)
    new_run(run.directory, new_model(n_layer=1))


def start(
    corpus: Corpus, folder: Path, step: int, model: GPT | None = None, config: TrainConfig = CONFIG
) -> tuple[Run, list[Event], Generator[Event, None, None]]:
    """A run that has taken so many steps, its events until then, and those to come."""
    model = model or new_model(n_layer=1)
    run = new_run(folder, model, corpus.tokenizer)
    events = train(model, corpus, config, run)
    before = []
    for event in events:
        before.append(event)
        if isinstance(event, Step) and event.step == step:
            break
    return run, before, events


@pytest.mark.parametrize("step", [3, 8], ids=["in the middle", "at the end"])
@pytest.mark.parametrize(("lose", "name"), [(delete, "fox"), (move, "fox"), (replace, "fox-2")])
def test_the_run_goes_on_in_a_new_folder_that_can_be_opened_and_resumed(
    corpus: Corpus, tmp_path: Path, lose: Callable[[Run], None], name: str, step: int
) -> None:
    run, _, events = start(corpus, tmp_path / "fox", step)
    lose(run)
    others = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock.json"}
    rest = list(events)
    *_, finished = rest
    assert isinstance(finished, Finished)
    (notice,) = [event.text for event in rest if isinstance(event, Notice)]
    assert notice.startswith(
        f"{tmp_path / 'fox'} was deleted, moved or replaced; the run is saved in {tmp_path / name} from step "
    )
    assert run.directory == tmp_path / name
    assert all(path.read_bytes() == content for path, content in others.items())  # of the moved or the other run
    again = Run.open(tmp_path / name)
    assert again.last_progress()["step"] == 8
    assert again.record.result is not None
    assert again.record.result.best_step == finished.best_step >= step // 2 * 2
    assert load_checkpoint(again.directory, "cpu").tokenizer.fingerprint == corpus.tokenizer.fingerprint
    assert all(line["step"] >= step // 2 * 2 for line in again.read_log())
    *_, longer = train(new_model(n_layer=1), corpus, CONFIG.replace(steps=10), again, resume=True)
    assert isinstance(longer, Finished)


def test_a_folder_that_is_lost_before_the_cool_down_takes_the_best_loss_with_it(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, evaluate = itertools.count(1.0), Evaluator._evaluate

    def ever_worse(self: Evaluator, max_tokens: int | None) -> Any:
        measured = evaluate(self, max_tokens)
        assert measured is not None
        return dataclasses.replace(measured, loss=next(losses))

    monkeypatch.setattr(Evaluator, "_evaluate", ever_worse)
    config = CONFIG.replace(eval_every=3, schedule="trapezoid", cooldown=0.5)
    run, _, events = start(corpus, tmp_path / "fox", 4, config=config)  # where nothing but the cool-down is due
    delete(run)
    *_, finished = events
    assert isinstance(finished, Finished)
    assert run.before_cooldown_progress()["step"] == 4  # type: ignore[index]
    assert finished.best_step == 5  # the first evaluation since then, although it is worse than those of lost weights
    with TensorFile(run.weights_path) as file:
        assert file.metadata["step"] == "5"


def test_a_stop_after_the_folder_was_deleted_saves_into_a_new_one(corpus: Corpus, tmp_path: Path) -> None:
    run, _, events = start(corpus, tmp_path / "fox", 5)
    delete(run)
    events.close()
    assert Run.open(tmp_path / "fox").last_progress()["step"] == 5


@pytest.mark.parametrize("lose", [delete, move, replace])
def test_if_no_new_folder_can_be_made_no_message_says_that_a_state_is_kept(
    corpus: Corpus, tmp_path: Path, lose: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, before, events = start(corpus, tmp_path / "fox", 3)
    assert any(isinstance(event, Saved) for event in before)
    lose(run)

    def refuse(self: Run, *_: object) -> None:
        raise CheckpointError("no space left on device")

    monkeypatch.setattr(Run, "relocate", refuse)
    rest: list[Event] = []
    with pytest.raises(CheckpointError, match="was deleted, moved or replaced"):
        rest.extend(events)
    texts = [event.text for event in rest if isinstance(event, Notice)]
    assert not [event for event in rest if isinstance(event, Saved)]
    assert (
        f"{tmp_path / 'fox'} was deleted, moved or replaced, and no new folder could be made (no space left" in texts[0]
    )
    assert any("no state is kept, because" in text for text in texts)
    assert not any("of step 2 is kept" in text for text in texts)


@pytest.mark.parametrize("lose", [delete, replace])
def test_a_divergence_after_the_folder_was_lost_does_not_restore_from_another_one(
    corpus: Corpus, tmp_path: Path, lose: Callable[[Run], None]
) -> None:
    model = new_model(n_layer=1)
    run, _, events = start(corpus, tmp_path / "fox", 3, model)
    lose(run)
    model.final_norm.weight.data.fill_(torch.nan)
    with pytest.raises(TrainingError, match=r"no state is kept, because .*/fox was deleted, moved or replaced"):
        list(events)


def files_of(run: Run) -> set[str]:
    return {str(path.relative_to(run.directory)) for path in run.directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("step", [1, 3, 8])
def test_files_deleted_inside_the_folder_are_written_again(corpus: Corpus, tmp_path: Path, step: int) -> None:
    run, _, events = start(corpus, tmp_path / "fox", step)
    expected = {name for name in files_of(run) if not name.startswith((".lock", "last/before_cooldown"))}
    for path in run.directory.rglob("*"):
        if path.is_file():
            path.unlink()
    rest: list[Event] = []
    for event in events:
        rest.append(event)
        if isinstance(event, Saved):
            with pytest.raises(CheckpointError, match="by this process already"):
                Run.open(run.directory).lock()
    assert isinstance(rest[-1], Finished)
    notices = [event.text for event in rest if isinstance(event, Notice)]
    assert any("were deleted, and are written again: config.json" in text for text in notices)
    assert any("the best weights were deleted; those of step" in text for text in notices)
    assert files_of(run) >= expected
    assert load_checkpoint(run.directory, "cpu").model is not None
    assert Run.open(run.directory).record.result is not None
    assert run.last_progress()["step"] == 8  # type: ignore[index]


def test_one_deleted_file_is_written_again_and_the_best_weights_stay(corpus: Corpus, tmp_path: Path) -> None:
    run, _, events = start(corpus, tmp_path / "fox", 3)
    (run.directory / "tokenizer_config.json").unlink()
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert notices == [f"files of {run.directory} were deleted, and are written again: tokenizer_config.json"]
    assert load_checkpoint(run.directory, "cpu").model is not None
