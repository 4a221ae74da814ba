"""`minigpt train` on files of tokens: the run of the text, resumed, evaluated and explained."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_writers import write_datatrove, write_llmc, write_meta, write_nanogpt

from minigpt.data.corpus import Corpus
from minigpt.storage.run import Run
from minigpt.tokenizer.tokenizer import Tokenizer

BYTES = Tokenizer.named("bytes")


@pytest.fixture
def tokens(here: Path) -> Path:
    """The tokens of web.txt in each format, in folders."""
    (here / "web.txt").write_text("<|endoftext|>".join(f"the web has page {n} of {n * n}" for n in range(300)))
    corpus = Corpus.build("web.txt", BYTES)
    for name, part in (("train", corpus.train), ("val", corpus.validation)):
        documents = [each.tolist() for each in np.split(part, np.flatnonzero(part == BYTES.end_of_text) + 1)[:-1]]
        for folder in ("nanogpt", "llmc", "datatrove"):
            (here / folder).mkdir(exist_ok=True)
        write_nanogpt(here / "nanogpt" / f"{name}.bin", part.tolist())
        for number, ids in enumerate(np.split(part, [999] if name == "train" else [])):
            write_llmc(here / "llmc" / f"{name}_{number}.bin", ids.tolist())
        write_datatrove(here / "datatrove" / f"{name}.ds", documents, str(here / "bytes" / "tokenizer.json"))
    (here / "bytes").mkdir()
    BYTES.save(here / "bytes")
    return here


def losses(run: str) -> list[tuple[int, float]]:
    log = Run.open(Path("checkpoints", run)).read_log()
    return [(line["step"], value) for line in log for key in ("loss", "validation_loss") if (value := line.get(key))]


def test_a_run_on_tokens_is_the_run_on_their_text(tokens: Path, run: Any, tiny: list[str]) -> None:
    options = [*tiny, "--no-report", "--learning-rate", "0.01"]
    assert run("train", "web.txt", *options).exit_code == 0
    for folder in ("nanogpt", "llmc", "datatrove"):
        files = [str(path) for path in sorted(Path(folder).iterdir())]  # as a shell expands nanogpt/*
        trained = run("train", *files, *options, "--name", folder)
        assert trained.exit_code == 0, trained.output
        assert losses(folder) == losses("web")
    halves = [*options, "--name", "halves"]
    halves[halves.index("--steps") + 1] = "3"
    assert run("train", "llmc/*.bin", *halves, "--schedule", "constant").exit_code == 0
    files = ["llmc/train_0.bin", "llmc/train_1.bin", "llmc/val_0.bin"]
    assert run("train", *files, *options, "--name", "whole", "--schedule", "constant").exit_code == 0
    resumed = run("train", "--resume", "--name", "halves", "--steps", "6")
    assert resumed.exit_code == 0, resumed.output
    assert losses("halves") == losses("whole")


def test_the_held_out_part_is_found_again_where_the_files_are_now(tokens: Path, run: Any, tiny: list[str]) -> None:
    assert run("train", "nanogpt/train.bin", *tiny, "--no-report").exit_code == 0
    expected = json.loads(run("evaluate", "train", "--held-out", "--json").stdout)["loss"]
    for path in (tokens / "cache" / "corpora").iterdir():
        (path / "corpus.json").unlink()
    again = run("evaluate", "train", "--held-out", "--json")
    assert json.loads(again.stdout)["loss"] == expected
    (tokens / "nanogpt").rename("moved")
    lost = run("evaluate", "train", "--held-out")
    assert lost.exit_code == 1
    assert "cannot be read; give that text" in lost.stderr
    moved = run("evaluate", "train", "moved/train.bin", "--held-out", "--json")
    assert json.loads(moved.stdout)["loss"] == expected
    assert "is not the text" in run("evaluate", "train", "moved/val.bin", "llmc/train_1.bin", "--held-out").stderr
    assert "give the new path of its text" in run("train", "--resume", "--name", "train", "--steps", "9").stderr
    assert "was not compared with the training text of train" in run("evaluate", "train", "web.txt").stderr
    found = run("generate", "the web", "--model", "train", "--memorization")
    assert found.exit_code == 1, found.output
    resumed = run("train", "moved/train.bin", "--resume", "--name", "train", "--steps", "9")
    assert resumed.exit_code == 0, resumed.output
    found = run("generate", "the web has page", "--model", "train", "--memorization")
    assert "was given as tokens, so it is not known in which file a passage is" in found.stderr


def test_a_model_of_characters_is_fine_tuned_on_nanogpts_files(here: Path, run: Any, tiny: list[str]) -> None:
    text = "the quick brown fox; " * 99
    characters = "".join(sorted(set(text)))
    write_meta(here, characters)
    write_nanogpt(here / "train.bin", [characters.index(each) for each in text])
    options = [each for each in tiny if each not in ("--tokenizer", "bytes")]
    assert run("train", "train.bin", *options, "--name", "chars").exit_code == 0
    tuned = run("train", "train.bin", "--from", "chars", "--steps", "2", "--name", "tuned")
    assert tuned.exit_code == 0, tuned.output
    assert Run.open(here / "checkpoints/tuned").record.tokenizer == "chars"


def test_what_has_no_effect_or_no_sense_is_said(tokens: Path, run: Any, tiny: list[str]) -> None:
    prepared = run("train", "llmc/train_0.bin", "--prepare")
    assert "these are tokens already" in prepared.stderr
    assert "gpt2" in prepared.stdout
    (tokens / "datatrove" / "train.ds.loss").touch()
    np.full(999, 65, "<u2").tofile("plain.bin")
    assert "train.ds.loss is not read" in run("train", "datatrove/train.ds", "--prepare").stderr
    planned = run("train", "plain.bin", *tiny, "--plan").stderr
    assert "no document ends with an end-of-text" in planned
    assert "look better than it is\n" in planned
    for arguments, message in (
        (["nanogpt/train.bin"], "nanogpt/train.bin does not name its tokenizer; give --tokenizer gpt2"),
        (["nanogpt/train.bin", "web.txt", *tiny], "nanogpt/train.bin has tokens and web.txt is a text"),
        (["--mix", "nanogpt/train.bin=1", "web.txt=1", *tiny], "some of the texts are files of tokens"),
        (["nanogpt/train.bin", "--deduplicate", *tiny], "deduplicate has no effect on nanogpt/train.bin"),
        (["nanogpt/train.bin", "--loss-on", "assistant", *tiny], "nanogpt/train.bin is not a chat log; give all"),
        (["nanogpt/train.bin", "nanogpt/val.bin", "--validation-fraction", "0.1", *tiny], "exclude each other"),
    ):
        refused = run("train", *arguments)
        assert refused.exit_code == 1
        assert message in refused.stderr
        assert refused.stderr.count("\n") == 1
