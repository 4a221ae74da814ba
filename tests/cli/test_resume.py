"""Which changes `minigpt train --resume` allows, refuses, prints and records."""

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_wandb import Wandb

from minigpt.bounded_reading import open_regular
from minigpt.cli.render.training_display import TrainingDisplay
from minigpt.errors import CheckpointError, TrainingError
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.run import Run as RunFolder

FOX = Path("checkpoints/fox")


@pytest.fixture
def fox(finished: Path, here: Path) -> None:
    """A copy of that finished run in the current folder."""
    shutil.copytree(finished / "checkpoints", here / "checkpoints")


def record() -> dict[str, Any]:
    return json.loads((FOX / "training.json").read_text())


def everything() -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in FOX.rglob("*") if path.is_file() and not path.name.startswith(".lock")
    }


@pytest.mark.parametrize(
    ("flags", "before"),
    [
        (["--n-layer", "2"], "1"),
        (["--n-head", "4"], "2"),
        (["--n-embd", "32"], "16"),
        (["--tokenizer", "chars"], "bytes"),
        (["--preset", "mini"], "nano"),
    ],
)
def test_options_that_the_weights_depend_on_can_never_change(
    run: Any, fox: None, flags: list[str], before: str
) -> None:
    stood = everything()
    for allowed in ([], ["--allow-change"]):
        result = run("train", "fox.txt", "--resume", "--steps", "9", *flags, *allowed)
        assert result.exit_code == 1
        assert f"{flags[0]} ({flags[1]}) cannot change on --resume: checkpoints/fox has {before}, and" in result.stderr
        assert "start a new run" in result.stderr
    assert everything() == stood


def test_another_model_to_fine_tune_needs_a_new_run(run: Any, fox: None) -> None:
    result = run("train", "fox.txt", "--resume", "--steps", "9", "--from", "fox", "--allow-change")
    assert result.exit_code == 1
    assert "--from (fox) cannot change" in result.stderr
    assert "start a new run with --from fox" in result.stderr


ALTERING = [
    (["--context-length", "8"], "context_length", "8"),
    (["--batch-tokens", "32"], "batch_tokens", "32"),
    (["--learning-rate", "0.0005"], "learning_rate", "0.0005"),
    (["--dtype", "bfloat16"], "dtype", "bfloat16"),
    (["--eval-tokens", "50"], "eval_tokens", "50"),
    (["--validation-fraction", "0.3"], "validation_fraction", "0.3"),
]


@pytest.mark.parametrize(("flags", "option", "value"), ALTERING, ids=[row[1] for row in ALTERING])
def test_other_changes_need_allow_change_and_are_printed_and_recorded(
    run: Any, fox: None, flags: list[str], option: str, value: str
) -> None:
    stood = everything()
    more = ["train", "fox.txt", "--resume", "--steps", "7", *flags]
    refused = run(*more)
    assert refused.exit_code == 1
    assert f"minigpt: {flags[0]} ({value}) cannot change on --resume without --allow-change: " in refused.stderr
    assert "checkpoints/fox has " in refused.stderr
    assert everything() == stood
    allowed = run(*more, "--allow-change")
    assert allowed.exit_code == 0, allowed.stderr
    assert f"{option} changes from " in allowed.stderr
    after = record()
    (change, *others) = after["changes"]
    assert (change["step"], change["option"], str(change["to"])) == (3, option, value)
    assert [other["option"] for other in others] == (["text"] if option == "validation_fraction" else [])
    settings = {**after["training"], **after["reading"], "dropout": after["model"]["dropout"]}
    assert str(settings[option]) == value
    assert "is finished (7 steps" in run(*more).stderr  # the value that it has now is no change


def test_all_refused_changes_are_named_with_the_values_of_the_run(run: Any, fox: None) -> None:
    flags = ["--batch-size", "3", "--learning-rate", "0.0005", "--n-layer", "1", "--weight-decay", "0.1"]
    result = run("train", "fox.txt", "--resume", "--steps", "9", *flags)
    expected = (
        "minigpt: --batch-size (3) and --learning-rate (0.0005) cannot change on --resume without --allow-change: "
        "checkpoints/fox has 4 and 0.001\n"
    )
    assert result.stderr == expected


def test_a_restarted_run_is_the_one_that_the_command_began(
    run: Any, fox: None, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", "fox.txt", "--name", "fox", *tiny]
    assert "saved in" in run(*command).stdout  # fox-2, because there is a run fox
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = run(*command)
    assert (again.exit_code, "checkpoints/fox-2 is finished" in again.stderr) == (0, True), again.stderr
    named = run(*command, "--resume")
    assert "checkpoints/fox is finished" in named.stderr


@pytest.mark.parametrize("other", [["--steps", "4"], ["--learning-rate", "0.002"]])
def test_a_restarted_command_continues_no_run_of_another_command(
    run: Any, fox: None, tiny: list[str], monkeypatch: pytest.MonkeyPatch, other: list[str]
) -> None:
    """A job script may have several commands; a requeued job runs all of them as restarted."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    stood = everything()
    begun = run("train", "fox.txt", *tiny, *other)
    assert begun.exit_code == 0, begun.stderr
    assert "there is no such run yet, so it starts now" in begun.stderr
    assert {name: content for name, content in everything().items() if name in stood} == stood
    assert "checkpoints/fox-2 is finished" in run("train", "fox.txt", *tiny, *other).stderr


def test_changing_a_value_back_is_a_change_too(run: Any, fox: None) -> None:
    assert run("train", "--resume", "--steps", "8", "--batch-tokens", "128", "--allow-change").exit_code == 0
    refused = run("train", "--resume", "--steps", "9", "--batch-size", "4")
    assert "--batch-size (4) cannot change on --resume without --allow-change" in refused.stderr
    assert "has 128 tokens" in refused.stderr
    assert run("train", "--resume", "--steps", "9", "--batch-size", "4", "--allow-change").exit_code == 0
    assert record()["training"]["batch_tokens"] is None
    assert record()["training"]["batch_size"] == 4
    assert [(change["step"], change["option"]) for change in record()["changes"]] == [
        (3, "batch_tokens"), (4, "batch_size"),
    ]  # fmt: skip


def test_free_options_change_without_allow_change(run: Any, fox: None) -> None:
    free = {"micro_batch_size": 2, "patience": 3, "eval_every": 2, "save_every": 4, "sample_every": 1,
            "sample_prompt": "the", "compile": "off", "device": "cpu", "devices": 1}  # fmt: skip
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in free.items()]
    result = run("train", "--resume", "--steps", "7", *flags, "--no-lora")
    assert result.exit_code == 0, result.stderr
    assert "changes from" not in result.stderr
    assert record()["changes"] == []
    assert free.items() <= record()["training"].items()


def test_the_same_command_resumes_if_the_text_was_too_short_for_the_context(run: Any, here: Path) -> None:
    (here / "short.txt").write_text("to be or not to be")
    command = ["train", "short.txt", "--context-length", "64", "--device", "cpu", "--preset", "nano", "--steps"]
    first = run(*command, "2")
    assert first.exit_code == 0, first.stderr
    again = run(*command, "3", "--resume")
    assert again.exit_code == 0, again.stderr


def test_a_changed_dropout_stays_with_the_model(run: Any, fox: None) -> None:
    assert run("train", "--resume", "--steps", "7", "--dropout", "0.25", "--allow-change").exit_code == 0
    assert load_checkpoint(FOX, "cpu").model.config.dropout == 0.25
    assert run("train", "--resume", "--steps", "8").exit_code == 0
    assert record()["model"]["dropout"] == 0.25


def test_the_micro_batch_size_is_free_without_dropout(run: Any, fox: None) -> None:
    assert record()["model"]["dropout"] == 0
    assert run("train", "--resume", "--steps", "7", "--micro-batch-size", "2").exit_code == 0
    assert record()["training"]["micro_batch_size"] == 2
    assert "changes" not in record() or record()["changes"] == []
    more = ["train", "--resume", "--steps", "8", "--micro-batch-size", "1"]
    assert run(*more, "--dropout", "0.25", "--allow-change").exit_code == 0
    assert [change["option"] for change in record()["changes"]] == ["dropout", "micro_batch_size"]
    more[3] = "9"
    assert run(*more).exit_code == 0  # the value that it has is no change
    more[5] = "4"
    refused = run(*more)
    assert refused.exit_code == 1
    assert "--micro-batch-size (4) cannot change on --resume without --allow-change" in refused.stderr
    more[3] = "10"
    assert run(*more, "--dropout", "0", "--allow-change").exit_code == 0
    assert record()["training"]["micro_batch_size"] == 4
    assert [change["option"] for change in record()["changes"]][2:] == ["dropout"]


def test_a_context_longer_than_the_models_is_refused_even_with_allow_change(run: Any, fox: None) -> None:
    stood = everything()
    result = run("train", "--resume", "--steps", "8", "--context-length", "17", "--allow-change")
    assert result.exit_code == 1
    assert "--context-length (17) must be at most the model's own (16)" in result.stderr
    assert everything() == stood


def test_another_optimizer_starts_from_zero_and_says_so(run: Any, fox: None) -> None:
    other = "adamw" if record()["training"]["optimizer"] == "muon" else "muon"
    result = run("train", "--resume", "--steps", "8", "--optimizer", other, "--allow-change")
    assert result.exit_code == 0, result.stderr
    assert f"to {other}, whose state starts from zero" in " ".join(result.stderr.split())


def test_another_text_needs_allow_change_and_uses_the_tokenizer_of_the_run(
    run: Any, here: Path, tiny: list[str]
) -> None:
    options = [flag for flag in tiny if flag not in ("--tokenizer", "bytes")]
    assert run("train", "fox.txt", *options, "--tokenizer", "chars").exit_code == 0
    words = (FOX / "tokenizer.json").read_bytes()
    before = record()["corpus"]
    (here / "other.txt").write_text("Ça ira, ça ira, ça ira! " * 99)
    refused = run("train", "other.txt", "--name", "fox", "--resume", "--steps", "9")
    assert refused.exit_code == 1
    assert "is not the one that checkpoints/fox was trained on" in refused.stderr
    assert "--allow-change" in refused.stderr
    assert record()["corpus"] == before
    allowed = run("train", "other.txt", "--name", "fox", "--resume", "--steps", "9", "--allow-change")
    assert allowed.exit_code == 0, allowed.stderr
    after = record()
    assert f"text changes from {before['fingerprint'][:8]} to {after['corpus']['fingerprint'][:8]}" in allowed.stderr
    assert [(change["step"], change["option"]) for change in after["changes"]] == [(3, "text")]
    assert after["sources"] == [str(here / "other.txt")]
    assert (FOX / "tokenizer.json").read_bytes() == words
    assert run("train", "--resume", "--name", "fox", "--steps", "10").exit_code == 0  # with the text that it has now


def test_after_a_change_of_the_text_only_evaluations_of_the_new_text_are_compared(
    run: Any, here: Path, fox: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []
    monkeypatch.setattr(TrainingDisplay, "read_log", lambda _, log: shown.extend(line["step"] for line in log))
    (here / "other.txt").write_text("Ça ira, ça ira, ça ira! " * 99)
    changed = run("train", "other.txt", "--name", "fox", "--resume", "--steps", "9", "--allow-change")
    assert changed.exit_code == 0, changed.stderr
    assert [change["step"] for change in record()["changes"]] == [3]
    assert shown == []  # the log still has the evaluation of the other text at step 3
    resumed = RunFolder.open(FOX)
    assert [line["step"] for line in resumed.record.comparable_evaluations(resumed.read_log())] == [3, 6, 9]
    assert run("train", "--resume", "--name", "fox", "--steps", "20").exit_code == 0
    assert shown[:1] == [3]


def test_a_text_from_a_pipe_resumes_from_the_cache_but_not_with_other_reading_settings(
    run: Any, here: Path, tiny: list[str]
) -> None:
    assert run("train", "-", *tiny, stdin="words and more words; " * 80).exit_code == 0
    assert run("train", "--resume", "--steps", "8").exit_code == 0
    other = run("train", "--resume", "--steps", "9", "--validation-fraction", "0.3", "--allow-change")
    assert other.exit_code == 1
    assert "read its text from a pipe; give it again" in other.stderr


def test_a_text_from_a_pipe_whose_tokens_are_gone_is_asked_for_again(run: Any, tiny: list[str]) -> None:
    text = "words and more words; " * 80
    assert run("train", "-", *tiny, stdin=text).exit_code == 0
    shutil.rmtree(json.loads(Path("checkpoints/stdin/training.json").read_text())["corpus"]["path"])
    missing = run("train", "--resume", "--steps", "8")
    assert missing.exit_code == 1
    assert "missing or damaged; give the text again: minigpt train - --resume --name stdin < TEXT" in missing.stderr
    again = run("train", "-", "--resume", "--name", "stdin", "--steps", "8", stdin=text)
    assert again.exit_code == 0, again.stderr


def test_a_run_that_is_being_trained_is_refused_and_stays_unchanged(run: Any, fox: None) -> None:
    training = RunFolder.open(FOX)
    training.lock()
    stood = everything()
    result = run("train", "--resume", "--steps", "9", "--learning-rate", "0.1", "--allow-change")
    assert result.exit_code == 1
    assert "checkpoints/fox is being trained" in result.stderr
    assert everything() == stood
    training.unlock()
    assert run("train", "--resume", "--steps", "9").exit_code == 0


def test_a_run_stopped_before_its_next_step_says_what_is_saved(
    run: Any, fox: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minigpt.training.loop.train", lambda *_, **__: (event for event in ()))
    resumed = ["train", "--resume", "--name", "fox", "--steps", "9"]
    assert "stopped: step 6 is saved in checkpoints/fox; continue with:" in run(*resumed).stderr
    shutil.rmtree(FOX / "last")
    folder = RunFolder.open(FOX)
    folder.save_best(load_checkpoint(FOX, "cpu").model, 0, 5.0)
    assert "stopped: nothing was saved yet; continue with:" in run(*resumed).stderr


def test_weights_without_a_state_are_neither_resumed_nor_overwritten(run: Any, fox: None) -> None:
    shutil.rmtree(FOX / "last")
    folder = RunFolder.open(FOX)
    folder.update(result=None)
    folder.save_best(load_checkpoint(FOX, "cpu").model, 3, 2.5)
    stood = everything()
    refused = run("train", "--resume", "--name", "fox", "--allow-change")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("minigpt: checkpoints/fox holds its weights of step 3 but no state to resume")
    assert everything() == stood
    new = refused.stderr.split("with ")[-1].split()
    assert run("train", "fox.txt", *new, "--name", "on", "--steps", "2", "--device", "cpu").exit_code == 0


def test_a_run_killed_before_its_first_step_starts_from_the_beginning(run: Any, fox: None) -> None:
    shutil.rmtree(FOX / "last")
    folder = RunFolder.open(FOX)
    folder.update(result=None)
    folder.save_best(load_checkpoint(FOX, "cpu").model, 0, 5.0)
    result = run("train", "--resume", "--name", "fox")
    assert result.exit_code == 0, result.stderr
    assert "before its first save, so it starts from the beginning" in " ".join(result.stderr.split())


def test_reading_a_run_does_not_lock_it(run: Any, fox: None) -> None:
    training = RunFolder.open(FOX)
    training.lock()
    for command in (["info", "fox"], ["evaluate", "fox", "fox.txt", "--device", "cpu"],
                    ["generate", "the", "--model", "fox", "--max-new-tokens", "3", "--device", "cpu"]):  # fmt: skip
        result = run(*command)
        assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("command", [["train", "fox.txt"], ["train", "fox.txt", "--resume", "--steps", "9"]])
def test_a_started_or_resumed_run_is_locked_while_it_trains(
    run: Any, here: Path, tiny: list[str], fox: None, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def train(_model: object, _corpus: object, _config: object, folder: RunFolder, **_: object) -> None:
        with pytest.raises(CheckpointError, match="is being trained"):
            RunFolder.open(folder.directory).lock()
        raise TrainingError("seen")

    monkeypatch.setattr("minigpt.training.loop.train", train)
    result = run(*command, *([] if "--resume" in command else tiny))
    assert result.stderr.endswith("minigpt: seen\n")


def test_runs_killed_while_their_folder_was_created_are_not_listed(run: Any, here: Path, fox: None) -> None:
    half_made = here / "checkpoints" / ".other.12345.tmp"
    half_made.mkdir()
    (half_made / "training.json").write_text("{}")
    result = run("train", "--resume", "--name", "nothing")
    assert result.stderr.endswith("there are: fox\n")


def test_the_same_command_resumes_the_run_that_it_began_not_an_earlier_one_of_the_text(
    run: Any, tiny: list[str]
) -> None:
    run("train", "fox.txt", *tiny, "--seed", "1")
    began = run("train", "fox.txt", *tiny, "--seed", "2")
    assert "this run is fox-2; to continue the existing run: --resume --name fox" in began.stderr
    for options, name in (
        (["--seed", "1"], "fox"),
        (["--seed", "2"], "fox-2"),
        ([], "fox-2"),  # the newer of the two
        (["--seed", "3", "--allow-change"], "fox-2"),
        (["--seed", "2", "--name", "fox", "--allow-change"], "fox"),
    ):
        done = run("train", "fox.txt", *tiny, *options, "--resume")
        assert f"checkpoints/{name} is finished" in done.stderr
    run("train", "--resume", "--name", "fox-2", "--steps", "8")
    assert (
        "checkpoints/fox is finished" in run("train", "fox.txt", *tiny, "--resume").stderr
    )  # the run with this length
    assert "resuming checkpoints/fox-2 from step 4" in run("train", "fox.txt", "--resume", "--steps", "9").stderr


def test_the_newest_run_of_a_text_may_have_any_name(run: Any, tiny: list[str]) -> None:
    run("train", "fox.txt", *tiny)
    run("train", "fox.txt", *tiny, "--name", "library")
    assert "checkpoints/library is finished" in run("train", "fox.txt", "--resume").stderr
    run("train", "--resume", "--name", "fox", "--steps", "8")  # now the newest
    assert "checkpoints/fox is finished" in run("train", "fox.txt", "--resume").stderr


def test_a_length_that_a_stopped_run_has_used_up_is_refused(run: Any, fox: None) -> None:
    (FOX / "training.json").write_text(json.dumps(record() | {"result": None}))
    before = everything()
    refused = run("train", "--resume", "--steps", "3")
    assert refused.exit_code == 1
    assert "--steps (3) counts from the start of checkpoints/fox, which has taken 6 steps in " in refused.stderr
    assert "; give a longer --steps" in refused.stderr
    assert everything() == before


def test_a_run_begun_by_train_in_python_is_not_resumed_by_the_command_line(run: Any, fox: None) -> None:
    (FOX / "training.json").write_text(json.dumps({"format": record()["format"], "training": record()["training"]}))
    for more in ([], ["fox.txt"], ["--devices", "1"]):
        refused = run("train", *more, "--resume")
        assert refused.exit_code == 1
        assert (
            "checkpoints/fox was begun by train() in Python, and its record does not say how to continue"
            in refused.stderr
        )


def test_a_run_without_its_best_weights_resumes_from_its_state(run: Any, fox: None) -> None:
    (FOX / "model.safetensors").unlink()
    again = run("train", "--resume", "--steps", "7")
    assert again.exit_code == 0, again.stderr
    assert "the best weights are missing or damaged; the weights of the last state replace them" in again.stderr
    assert "resuming checkpoints/fox from step 3" in again.stderr
    best = record()["result"]["best_step"]
    assert best in (6, 7)
    os.truncate(FOX / "model.safetensors", 1000)
    longer = run("train", "--resume", "--steps", "14")  # from before the cool-down
    assert longer.exit_code == 0, longer.stderr
    assert "best weights stay" not in longer.stderr
    best = record()["result"]["best_step"]
    assert RunFolder.open(FOX).best_figures() == (best, record()["result"]["validation_loss"])
    (FOX / "model.safetensors").unlink()
    shutil.rmtree(FOX / "last")
    refused = run("train", "--resume", "--steps", "9")
    assert "model.safetensors does not exist" in refused.stderr


def test_best_weights_that_are_temporarily_unreadable_are_not_overwritten(run: Any, fox: None) -> None:
    before = (FOX / "model.safetensors").read_bytes()

    def closed(path: Path) -> Any:
        if path.name == "model.safetensors":
            raise OSError(errno.EIO, "Input/output error")
        return open_regular(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minigpt.storage.byte_file.open_regular", closed)
        refused = run("train", "--resume", "--steps", "7")
    assert refused.exit_code == 1
    assert "model.safetensors could not be read (input/output error)" in refused.stderr
    assert (FOX / "model.safetensors").read_bytes() == before


def test_a_run_of_another_text_with_the_same_name_is_not_resumed(run: Any, here: Path, tiny: list[str]) -> None:
    (here / "other").mkdir()
    (here / "other/fox.txt").write_text("a lazier dog never saw a browner fox; " * 60)
    run("train", "other/fox.txt", *tiny)
    run("train", "fox.txt", *tiny)
    run("train", "--resume", "--name", "fox", "--steps", "8")  # now the newest
    assert "checkpoints/fox-2 is finished" in run("train", "fox.txt", *tiny, "--resume").stderr
    (here / "checkpoints/fox-2/training.json").write_text("{")  # reported only for the run that is opened
    assert "checkpoints/fox is finished" in run("train", "other/fox.txt", *tiny, "--resume").stderr


@pytest.fixture
def failing_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package wandb where nobody is logged in."""

    def refuse() -> None:
        raise RuntimeError("not logged in")

    wandb = Wandb()
    wandb.fail = refuse
    monkeypatch.setitem(sys.modules, "wandb", wandb)


@pytest.mark.usefixtures("fox", "failing_wandb")
def test_a_logger_that_cannot_start_leaves_a_resumed_run_as_it_was(run: Any) -> None:
    (FOX / "wandb").mkdir()
    stood = everything()
    result = run("train", "--resume", "--steps", "8", "--log", "wandb", "--dropout", "0.5", "--allow-change")
    assert result.exit_code == 1
    assert "minigpt: --log wandb cannot start (not logged in); log in by" in result.stderr
    assert everything() == stood
    RunFolder.open(FOX).lock()


@pytest.mark.usefixtures("failing_wandb")
@pytest.mark.parametrize("distill", ["off", "on"])
def test_a_logger_that_cannot_start_leaves_no_new_run(run: Any, here: Path, tiny: list[str], distill: str) -> None:
    result = run("train", "fox.txt", *tiny, "--distill", distill, "--log", "wandb")
    assert result.exit_code == 1
    assert "minigpt: --log wandb cannot start (not logged in); log in by" in result.stderr
    assert not (here / "checkpoints" / "fox").exists()


def test_a_text_that_was_moved_is_named_with_the_command_that_gives_its_new_path(
    run: Any, here: Path, fox: None
) -> None:
    RunFolder.open(FOX).update(sources=("/old/fox.txt",))
    assert run("train", "--resume", "--steps", "7").stderr == (
        "minigpt: /old/fox.txt does not exist, a text that checkpoints/fox was trained on; give the new path of its "
        "text: minigpt train NEW_PATH --resume --name fox\n"
    )
    assert run("train", "fox.txt", "--resume", "--name", "fox", "--steps", "7").exit_code == 0
    assert record()["sources"] == [str(here / "fox.txt")]


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 4
    path.write_bytes(content)


def test_a_flipped_bit_in_the_state_is_refused_in_one_sentence(run: Any, fox: None) -> None:
    (FOX / "last/before_cooldown.safetensors").unlink()
    flip_a_bit(FOX / "last/state.safetensors")
    result = run("train", "--resume", "--steps", "12")
    assert result.exit_code == 1
    error = result.stderr.splitlines()[-1]
    assert error.startswith("minigpt: checkpoints/fox/last/state.safetensors is damaged: its tensor '")
    assert "start a new run from the best weights with --from fox" in error


def test_a_flipped_bit_in_the_best_weights_replaces_them_by_those_of_the_state(run: Any, fox: None) -> None:
    flip_a_bit(FOX / "model.safetensors")
    result = run("train", "--resume", "--steps", "12")
    assert result.exit_code == 0, result.stderr
    assert "the best weights are missing or damaged" in result.stderr
    assert run("info", "fox", "--verify").exit_code == 0


def test_info_verifies_the_checksums_of_every_file(run: Any, fox: None) -> None:
    shown = run("info", "fox", "--verify")
    assert "last/state.safetensors: " in shown.stdout
    assert json.loads(run("info", "fox", "--verify", "--json").stdout)["verified"]["model.safetensors"] > 0
    flip_a_bit(FOX / "last/before_cooldown.safetensors")
    result = run("info", "fox", "--verify")
    assert result.exit_code == 1
    assert "before_cooldown.safetensors is damaged: its tensor" in result.stderr
