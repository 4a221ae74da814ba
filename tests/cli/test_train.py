"""`minigpt train` as a user types it, right and wrong."""

import gzip
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from minigpt.data.corpus import Corpus
from minigpt.errors import CheckpointError
from minigpt.runs import reading
from minigpt.storage.run import Run as RunFolder
from minigpt.storage.run_record import CorpusRecord


def test_a_text_without_options_is_planned_in_five_lines_and_the_whole_plan_names_the_options(
    run: Any, here: Path, loss_curves: None
) -> None:
    whole = run("train", "fox.txt", "--steps", "2", "--plan")
    for flag in ("--tokenizer", "--preset", "--n-layer", "--context-length", "--batch-size", "--learning-rate"):
        assert flag in whole.stdout
    result = run("train", "fox.txt", "--steps", "2")
    assert result.exit_code == 0, result.output
    lines = result.stderr.splitlines()
    assert [line.split("  ")[0] for line in lines[:5]] == ["text", "model", "time", "expected", "all settings"]
    assert lines[0].split() == ["text", "2.4", "kB,", "and", "267", "bytes", "held", "out", "to", "measure", "on"]
    assert re.fullmatch(r"time +2 steps, done at \d\d:\d\d:\d\d; .* epochs *", lines[2])
    assert lines[4].split() == ["all", "settings", "--plan;", "the", "run", "is", "saved", "in", "checkpoints/fox"]
    assert "--learning-rate" not in result.stderr
    done = result.stdout.splitlines()
    assert done[0].strip() == "done"
    assert re.fullmatch(r"(Better than|Between|Not yet better than) .*\.", done[1].strip())
    assert re.match(r"\d\.\d{4} bits per byte: its predictions would ", done[2])
    assert "docs/tutorials/first-model.md" in result.stdout
    assert {path.name for path in (here / "checkpoints" / "fox").iterdir()} >= {
        "config.json", "model.safetensors", "generation_config.json", "tokenizer.json", "training.json", "log.jsonl",
        "last", "loss.png",
    }  # fmt: skip
    assert "saved in" in result.stdout
    assert "bits per byte" in result.stdout


def test_an_existing_run_is_never_overwritten(run: Any, here: Path, tiny: list[str]) -> None:
    assert run("train", "fox.txt", *tiny).exit_code == 0
    before = (here / "checkpoints/fox/model.safetensors").read_bytes()
    again = run("train", "fox.txt", *tiny, "--seed", "2")
    assert again.exit_code == 0
    assert "fox-2" in again.stderr
    assert (here / "checkpoints/fox/model.safetensors").read_bytes() == before
    assert (here / "checkpoints/fox-2/model.safetensors").read_bytes() != before


def test_a_finished_run_says_how_to_continue_and_continues_when_asked(run: Any, here: Path, tiny: list[str]) -> None:
    run("train", "fox.txt", *tiny)
    done = run("train", "fox.txt", "--resume")
    assert done.exit_code == 0
    assert "is finished (6 steps" in done.stderr
    assert run("train", "fox.txt", *tiny, "--resume").exit_code == 0
    changed = run("train", "fox.txt", "--resume", "--batch-size", "2", "--allow-change")
    assert (changed.exit_code, "is finished (6 steps" in changed.stderr) == (1, True)
    assert "longer --steps" in done.stderr
    more = run("train", "--resume", "--steps", "9")  # the newest run, with its own text
    assert more.exit_code == 0, more.stderr
    log = list(RunFolder.open(here / "checkpoints/fox").read_log())
    assert [line["step"] for line in log if "loss" in line] == list(range(1, 10))


def test_the_same_command_with_resume_continues(run: Any, here: Path, tiny: list[str]) -> None:
    command = ["train", "fox.txt", "--from", "base", "--validation-fraction", "0.2", "--device", "cpu"]
    run("train", "fox.txt", *tiny, "--tokenizer", "bpe:4000", "--name", "base")  # the text has fewer tokens
    assert run(*command, "--steps", "3", "--name", "tuned").exit_code == 0
    again = run(*command, "--steps", "5", "--name", "tuned", "--resume")
    assert again.exit_code == 0, again.stderr
    assert "resuming checkpoints/tuned from step 2" in again.stderr
    base = run("train", "fox.txt", *tiny, "--tokenizer", "bpe:4000", "--name", "base", "--resume", "--steps", "8")
    assert base.exit_code == 0, base.stderr


def test_a_run_stopped_at_its_last_step_is_measured_when_it_is_resumed(run: Any, here: Path, tiny: list[str]) -> None:
    run("train", "fox.txt", *tiny)
    folder = RunFolder.open(here / "checkpoints/fox")
    result = folder.record.result
    folder.update(result=None)  # as after a kill before the final evaluation
    assert run("train", "fox.txt", *tiny, "--resume").exit_code == 0
    again = RunFolder.open(here / "checkpoints/fox").record.result
    assert again.validation_loss == result.validation_loss


def test_an_early_stop_says_how_to_continue(run: Any, here: Path, tiny: list[str]) -> None:
    wrecked = [*tiny, "--steps", "60", "--eval-every", "1", "--learning-rate", "5", "--patience", "2"]
    wrecked += ["--spike-threshold", "0"]
    first = run("train", "fox.txt", *wrecked)
    assert "stopped early" in first.stdout
    refused = run("train", "fox.txt", *wrecked, "--resume")
    assert refused.exit_code == 0
    assert "continue with --patience 0" in refused.stderr
    assert run("train", "fox.txt", *wrecked, "--resume", "--patience", "0").exit_code == 0


def test_a_held_out_text_without_a_token_to_score_is_not_measured(run: Any, here: Path, tiny: list[str]) -> None:
    (here / "short.txt").write_text("hello world")
    result = run("train", "short.txt", *tiny, "--batch-size", "1")
    assert result.exit_code == 0, result.stderr
    assert not re.search(r"\bnan\b", result.stdout + result.stderr)
    assert "bits per byte" not in result.stdout


def test_a_held_out_text_that_is_a_copy_is_noted_before_training(run: Any, here: Path, tiny: list[str]) -> None:
    result = run("train", "fox.txt", *tiny)
    assert "about 100% of the held-out text also occurs in the training text" in " ".join(result.stderr.split())


def test_a_diverged_run_ends_with_an_error_that_names_the_usual_learning_rate(
    run: Any, here: Path, tiny: list[str]
) -> None:
    result = run("train", "fox.txt", *tiny, "--steps", "60", "--learning-rate", "50", "--optimizer", "muon")
    assert result.exit_code == 1
    assert result.stderr.endswith("the learning rate is too high: 50; runs of this size use 0.008\n")
    assert "more text" not in result.stderr
    assert "(diverged)" in run("list").stdout
    assert "training diverged" in run("info", "fox").stdout
    assert "Training diverged" in (here / "checkpoints/fox/README.md").read_text()
    run("report", "fox")
    assert "diverged after" in (here / "checkpoints/fox/report.html").read_text()
    again = run("train", "--resume", "--learning-rate", "0.008", "--allow-change")
    assert again.exit_code == 0, again.stderr


def test_a_run_that_cooled_down_early_says_so_and_how_to_continue(run: Any, tiny: list[str]) -> None:
    wrecked = [*tiny, "--steps", "400", "--eval-every", "5", "--learning-rate", "2", "--patience", "2"]
    wrecked += ["--cooldown", "0.2", "--spike-threshold", "0"]
    first = run("train", "fox.txt", *wrecked)
    assert "the learning rate starts to decay now" in first.stderr
    assert "stopped early" in first.stdout
    refused = run("train", "fox.txt", *wrecked, "--resume")
    assert refused.exit_code == 0
    assert (
        "the validation loss no longer improved, so the learning rate fell to its end there; continue with --patience 0"
        in (refused.stderr)
    )
    assert run("train", "fox.txt", *wrecked, "--resume", "--patience", "0").exit_code == 0


def test_a_run_whose_name_was_taken_during_preparation_gets_the_next_name(
    run: Any, here: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def corpus_record(corpus: Corpus) -> CorpusRecord:
        (here / "checkpoints/fox").mkdir(parents=True)
        (here / "checkpoints/fox/training.json").write_text("theirs")
        return reading.corpus_record(corpus)

    monkeypatch.setattr("minigpt.runs.start_run.corpus_record", corpus_record)
    result = run("train", "fox.txt", *tiny)
    assert result.exit_code == 0, result.stderr
    assert "another run has just created checkpoints/fox, so this run is fox-2" in result.stderr
    assert (here / "checkpoints/fox/training.json").read_text() == "theirs"
    assert RunFolder.open(here / "checkpoints/fox-2").record.result


def test_resume_continues_the_newest_run_not_the_newest_model(run: Any, here: Path, tiny: list[str]) -> None:
    run("train", "fox.txt", *tiny)
    run("load-gpt2", "--from", "checkpoints/fox", "--name", "copy", "--device", "cpu")
    assert (here / "checkpoints/copy").is_dir()
    more = run("train", "--resume", "--steps", "8")
    assert "resuming checkpoints/fox" in more.stderr


def test_printed_commands_include_a_checkpoints_folder_that_is_not_the_default(
    run: Any, here: Path, tiny: list[str]
) -> None:
    result = run("train", "fox.txt", *tiny, "--checkpoints", "my runs", "--name", "a fox")
    last = result.stdout.splitlines()[-1]
    prompt = re.fullmatch(r"minigpt generate '(.+)' --model 'a fox' --checkpoints 'my runs'", last)
    assert prompt is not None
    assert prompt[1] in (here / "fox.txt").read_text()


def test_a_folder_that_holds_its_own_runs_is_a_text_that_resumes(
    run: Any, here: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "text").mkdir()
    (here / "fox.txt").rename(here / "text" / "fox.txt")
    monkeypatch.chdir(here / "text")
    assert run("train", ".", *tiny).exit_code == 0
    result = run("train", "--resume", "--name", "text", "--steps", "9")
    assert result.exit_code == 0, result.stderr
    assert "skipped a folder with a model:" in " ".join(result.stderr.split())
    assert run("train", ".", *tiny).exit_code == 0
    fingerprints = [
        json.loads((here / "text" / "checkpoints" / name / "training.json").read_text())["corpus"]["fingerprint"]
        for name in ("text", "text-2")
    ]
    assert fingerprints[0] == fingerprints[1]


def test_fine_tuning_starts_from_the_weights_and_tokenizer_of_the_other_model(
    run: Any, here: Path, tiny: list[str]
) -> None:
    run("train", "fox.txt", *tiny, "--tokenizer", "chars", "--steps", "60", "--learning-rate", "0.02")
    tuned = run("train", "fox.txt", "--from", "fox", "--steps", "2", "--name", "tuned", "--device", "cpu")
    assert tuned.exit_code == 0, tuned.stderr
    record = json.loads((here / "checkpoints/tuned/training.json").read_text())
    plan = " ".join(options for _, _, options in record["plan"])
    assert "--from" in plan
    assert not any(flag in plan for flag in ("--preset", "--tokenizer", "--n-layer"))  # which would be refused
    assert record["tokenizer"] == "chars"
    assert record["from"] == "checkpoints/fox"
    first = next(line for line in RunFolder.open(here / "checkpoints/tuned").read_log() if "validation_loss" in line)
    parent = json.loads((here / "checkpoints/fox/training.json").read_text())
    assert first["validation_loss"] == pytest.approx(parent["result"]["validation_loss"], rel=0.02)
    long = run("train", "fox.txt", "--from", "fox", "--steps", "2", "--context-length", "17", "--name", "long")
    assert long.exit_code == 1
    assert "--context-length (17) must be at most the model's own (16)" in long.stderr
    assert not (here / "checkpoints/long").exists()
    refused = run("train", "fox.txt", "--from", "fox", "--steps", "2", "--n-layer", "3")
    assert refused.exit_code == 1
    assert "--n-layer (3) cannot be chosen when fine-tuning" in refused.stderr


def test_the_machine_is_recorded_and_another_one_may_resume(run: Any, here: Path, tiny: list[str]) -> None:
    assert run("train", "fox.txt", *tiny).exit_code == 0
    path = here / "checkpoints/fox/training.json"
    record = json.loads(path.read_text())
    environment = record["environment"]
    assert environment["python"] == platform.python_version()
    assert (environment["processes"], environment["gpu"]) == (1, None)
    assert environment["cpu"]
    assert environment["system"]
    assert environment["threads"] >= 1
    record["environment"] = environment | {"cpu": "another", "threads": 99}
    path.write_text(json.dumps(record))
    again = run("train", "--resume", "--name", "fox", "--steps", "8")
    assert again.exit_code == 0, again.stderr


def test_the_summary_says_how_many_validation_tokens_were_evaluated(
    run: Any, here: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("train", "fox.txt", *tiny, "--no-report")
    folder = RunFolder.open(here / "checkpoints/fox")
    n_scored = folder.record.corpus.validation_tokens - 1
    assert f"nats per token, all {n_scored} tokens" in whole.stdout
    monkeypatch.setattr("minigpt.training.evaluation.Evaluator._final_tokens", lambda _: 64)
    part = run("train", "fox.txt", *tiny, "--no-report", "--name", "part")
    assert f"nats per token, 64 of {n_scored} tokens" in part.stdout


def test_a_full_disk_at_the_end_does_not_prevent_the_summary(
    run: Any, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    update = RunFolder.update

    def full(self: RunFolder, **entries: Any) -> None:
        if "result" in entries:
            raise CheckpointError("training.json could not be written (no space left on device)")
        update(self, **entries)

    monkeypatch.setattr(RunFolder, "update", full)
    result = run("train", "fox.txt", *tiny, "--no-report")
    assert result.exit_code == 1
    assert "bits per byte" in result.stdout
    assert result.stderr.endswith("minigpt: training.json could not be written (no space left on device)\n")


@pytest.mark.parametrize("name", ["tiny.txt", "tiny.md", "tiny.txt.gz", "tiny.jsonl"])
def test_every_text_format_trains_even_with_thirty_bytes(run: Any, here: Path, name: str) -> None:
    text = "to be or not to be, that is it"
    raw = (json.dumps({"text": text}) if "jsonl" in name else text).encode()
    (here / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    result = run("train", name, "--steps", "2", "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    assert "the training text has only" in " ".join(result.stderr.split())
    assert (here / "checkpoints/tiny/model.safetensors").exists()


def test_a_folder_that_cannot_be_written_is_one_clear_line(run: Any, here: Path, tiny: list[str]) -> None:
    (here / "checkpoints").write_text("a file where the folder should be")
    result = run("train", "fox.txt", *tiny)
    assert result.exit_code == 1
    assert "checkpoints" in result.stderr.splitlines()[-1]
    assert "could not be written" in result.stderr.splitlines()[-1]


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_resume(run: Any, here: Path, tiny: list[str]) -> None:
    command = ["train", "fox.txt", *tiny, "--steps"]
    process = subprocess.Popen(
        [sys.executable, "-m", "minigpt", *command, "1000000"], stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    log = here / "checkpoints" / "fox" / "log.jsonl"
    deadline = time.monotonic() + 60
    try:
        while not (log.exists() and '"step": 5,' in log.read_text()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "minigpt train --resume --name fox" in stderr
    folder = RunFolder.open(here / "checkpoints" / "fox")
    state = folder.load_last()
    assert state is not None
    stopped = state.progress["step"]
    assert stopped == max(line["step"] for line in folder.read_log())
    resumed = run(*command, str(stopped + 2), "--resume")
    assert resumed.exit_code == 0, resumed.stderr
    steps = [line["step"] for line in folder.read_log() if "loss" in line]
    assert steps == list(range(1, stopped + 3))


@pytest.mark.parametrize("arguments", [["train"], ["train", "--prepare"], ["evaluate", "fox"]])
def test_a_folder_with_a_text_in_another_encoding_is_the_error_of_the_text_everywhere(
    run: Any, here: Path, tiny: list[str], arguments: list[str]
) -> None:
    if arguments[0] == "evaluate":
        assert run("train", "fox.txt", *tiny, "--no-report").exit_code == 0
    (here / "mixed").mkdir()
    (here / "mixed" / "a.txt").write_text("Läuft über die Brücke. " * 99, encoding="utf-8")
    (here / "mixed" / "b.txt").write_text("Läuft über die Brücke … " * 99, encoding="cp1252")
    refused = run(*arguments, "mixed", *(tiny if arguments[0] == "train" else []))
    assert refused.exit_code == 1
    assert f"{Path('mixed', 'b.txt')} is not UTF-8: byte 1 is 0xe4; it is probably Windows-1252" in refused.stderr
    read = run(*arguments, "mixed", *(tiny if arguments[0] == "train" else []), "--encoding", "windows-1252")
    assert read.exit_code == 0, read.stderr
    note = f"read a file that is UTF-8 as that, not as windows-1252: {Path('mixed', 'a.txt')}; read as windows-1252: "
    assert note in " ".join(read.stderr.split())
