"""The report of a run shows its record and its log, also of runs that were interrupted or damaged."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model, new_run

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.errors import CheckpointError
from minigpt.reports import run_report
from minigpt.reports.run_report import report_page, run_data, write_report
from minigpt.storage.run import Run
from minigpt.training.loop import train

CORPUS = {"fingerprint": "f00d", "path": "nowhere", "train_bytes": 1000, "validation_bytes": 100, "train_tokens": 500,
          "validation_tokens": 50}  # fmt: skip
HOSTILE = "</script><script>alert(1)</script><!-- "


def save_run(folder: Path, **record: Any) -> Run:
    """A run's folder with an untrained model."""
    return new_run(folder, new_model(n_layer=1), record={"corpus": CORPUS, **record})


def read_page(text: str) -> dict[str, Any]:
    """The data in a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def step(number: int, loss: float = 2.0) -> dict[str, float]:
    return {"step": number, "loss": loss, "learning_rate": 0.01, "tokens_per_second": 100.0}


def test_the_page_of_a_trained_run_holds_its_log_and_its_record(tmp_path: Path) -> None:
    (tmp_path / "fox.txt").write_text("the quick brown fox jumps over the lazy dog; " * 60)
    corpus = Corpus.build(tmp_path / "fox.txt", "bytes", cache=tmp_path / "cache")
    run = save_run(tmp_path / "fox", training={"seed": 7})
    config = TrainConfig(steps=6, eval_every=2, sample_every=3, batch_size=2, device="cpu", dtype="float32")
    list(train(new_model(n_layer=1), corpus, config, run))
    data = run_data(run.directory)
    log = list(run.read_log())
    losses = [line["loss"] for line in log if "loss" in line]
    assert data["training"]["step"] == [1, 2, 3, 4, 5, 6]
    assert data["training"]["loss"] == pytest.approx(losses, rel=1e-4)
    assert data["validation"]["step"] == [0, 2, 4, 6]
    evaluated = [line for line in log if "validation_loss" in line]
    assert data["validation"]["bits"] == pytest.approx([line["bits_per_byte"] for line in evaluated], rel=1e-4)
    assert [sample["step"] for sample in data["samples"]] == [3, 6]
    assert [sample["text"] for sample in data["samples"]] == [line["sample"] for line in log if "sample" in line]
    assert all(isinstance(sample["longestRun"], float) for sample in data["samples"])
    assert data["bitsPerNat"] == pytest.approx(1 / math.log(2), rel=1e-2)  # a token is a byte, except end-of-text
    assert "".join(data["passage"]["tokens"]).startswith(
        corpus.tokenizer.decode(corpus.validation[:12].tolist()).replace(" ", "␣")
    )
    assert [row["step"] for row in data["passage"]["rows"]] == [0, 2, 4, 6]
    assert all(len(row["bits"]) == 15 for row in data["passage"]["rows"])
    mean = sum(data["passage"]["rows"][0]["bits"]) / 15
    assert mean == pytest.approx(8.0, abs=0.3)  # an untrained model with a vocabulary of 257
    assert data["state"] == "finished after 6 steps"
    assert dict(data["tables"][1]["rows"])["hash of the tokens"] == "f00d"


def test_the_surprisal_in_the_log_is_the_loss_of_each_token(tmp_path: Path) -> None:
    (tmp_path / "fox.txt").write_text("the quick brown fox jumps over the lazy dog; " * 60)
    corpus = Corpus.build(tmp_path / "fox.txt", "bytes", cache=tmp_path / "cache")
    model, run = new_model(n_layer=1), save_run(tmp_path / "fox")
    list(train(model, corpus, TrainConfig(steps=2, batch_size=2, device="cpu", dtype="float32"), run))
    last = [line for line in run.read_log() if "surprise" in line][-1]
    ids = torch.tensor(last["passage"])
    with torch.inference_mode():
        logits = model.eval()(ids[None])[0]
    expected = torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none")
    assert last["surprise"] == pytest.approx(expected.tolist(), abs=1e-3)
    assert ids.tolist() == corpus.validation[:16].tolist()


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_an_interrupted_run_shows_what_it_has_logged(tmp_path: Path, kept: int) -> None:
    run = save_run(tmp_path / "interrupted")
    lines = [{"step": 0, "validation_loss": 5.0, "bits_per_byte": 3.6}, step(1), step(2), step(3)]
    for line in lines[:kept]:
        run.log(line)
    with run.log_path.open("ab") as file:
        file.write(b'{"step": 4, "lo')  # cut short by a kill
    data = run_data(run.directory)
    assert data["state"].startswith("not finished")
    assert len(data["training"]["step"]) == max(0, kept - 1)
    assert data["passage"] is None
    assert data["whyNoPassage"] == "no evaluation has ended"
    assert data["samples"] == []
    assert read_page(report_page([run.directory]))["runs"][0]["name"] == "interrupted"


def test_a_long_log_is_thinned_and_keeps_its_ends(tmp_path: Path) -> None:
    run = save_run(tmp_path / "long")
    run.log_path.write_text("".join(json.dumps(step(number, 1 / number)) + "\n" for number in range(1, 20_001)))
    data = run_data(run.directory)
    steps = data["training"]["step"]
    assert len(steps) <= 1500
    assert (steps[0], steps[-1]) == (1, 20_000)
    assert steps == sorted(set(steps))
    assert len(report_page([run.directory])) < 400_000


def test_a_loss_that_is_nan_or_null_is_omitted(tmp_path: Path) -> None:
    run = save_run(tmp_path / "odd")
    run.log(step(1))
    run.log(step(2, math.nan))
    run.log({"step": 2, "validation_loss": None, "bits_per_byte": None})
    assert run_data(run.directory)["training"]["step"] == [1]
    report_page([run.directory])


def test_text_from_the_corpus_or_the_command_line_cannot_become_part_of_the_page(tmp_path: Path) -> None:
    run = save_run(tmp_path / "hostile", sources=[HOSTILE])
    run.log({"step": 1, "prompt": HOSTILE, "sample": HOSTILE, "longest_copied_words": 1, "copied_share": 0.0})
    text = report_page([run.directory])
    assert "alert(1)" in text
    assert "<script>alert" not in text
    assert read_page(text)["runs"][0]["samples"][0]["text"] == HOSTILE


def test_two_runs_with_the_same_name_are_told_apart_by_the_folders_above(tmp_path: Path) -> None:
    folders = [save_run(tmp_path / place / "fox").directory for place in ("a", "b")]
    names = [run["name"] for run in read_page(report_page(folders))["runs"]]
    assert names == ["a/fox", "b/fox"]


def test_a_folder_without_a_run_and_a_damaged_log_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no training run"):
        write_report([tmp_path], tmp_path / "out.html")
    run = save_run(tmp_path / "damaged")
    run.log_path.write_text('{"step": 1}\nnonsense\n')
    with pytest.raises(CheckpointError, match="line 2 is not JSON"):
        write_report([run.directory], tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


def test_a_folder_whose_name_is_too_long_is_one_sentence(tmp_path: Path) -> None:
    run = save_run(tmp_path / "fox")
    with pytest.raises(CheckpointError, match=r"out\.html could not be written"):
        write_report([run.directory], tmp_path / ("x" * 300) / "out.html")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("7", "line 2: not a line of a run's log"),
        ('{"loss": 1.0}', "line 2: not a line of a run's log"),
        ('{"step": 2, "loss": "low"}', "line 2: loss is 'low'"),
        ('{"step": 2, "loss": 1.0, "tokens": "many"}', "line 2: tokens is 'many'"),
        ('{"step": 2, "loss": 1.0, "seconds": -1.0}', "line 2: seconds is -1.0"),
        ('{"step": 2, "validation_loss": [1], "bits_per_byte": 2.0}', "validation_loss is [1]"),
        ('{"step": 2, "sample": 5}', "sample is 5"),
        ('{"step": 2, "sample": "a", "copied_spans": [[1]]}', "copied_spans is [[1]]"),
        ('{"step": 2, "validation_loss": 1.0, "surprise": [1.0, 2.0], "passage": [1, 2]}', "do not match in length"),
        ('{"step": 2, "validation_loss": 1.0, "surprise": ["a"], "passage": [1, 2]}', "surprise is ['a']"),
    ],
)
def test_a_damaged_line_of_the_log_is_refused_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    run = save_run(tmp_path / "damaged")
    run.log_path.write_text(json.dumps(step(1)) + "\n" + line + "\n")
    with pytest.raises(CheckpointError, match=re.escape(message)):
        run_data(run.directory)


def test_the_environment_and_partial_baselines_are_shown(tmp_path: Path) -> None:
    kept = {"bits_per_byte": 2.0, "validation_bytes": 100, "whole_train_bytes": 1000, "whole_validation_bytes": 100}
    measured = [{"name": "gzip", "train_bytes": 0, **kept}, {"name": "xz", "train_bytes": 600, **kept}]
    run = save_run(
        tmp_path / "fox",
        environment={"python": "3.12.1", "gpu": None, "threads": 2},
        baselines={"fingerprint": "f00d", "measured": measured},
    )
    data = run_data(run.directory)
    rows = {table["title"]: dict(table["rows"]) for table in data["tables"]}["Environment"]
    assert (rows["Python version"], rows["threads"]) == ("3.12.1", "2")
    assert "GPU" not in rows
    assert [name for name, _ in data["baselines"]] == ["gzip", "xz*"]
    methods = {method["name"]: method for method in data["headline"]["methods"]}
    assert not methods["gzip"]["isPartial"]
    assert methods["xz"]["isPartial"]
    assert methods["xz"]["uses"] == "repetitions in the training text; only trained on 600 B"


def test_a_page_has_no_folder_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / "Jane Doe"
    monkeypatch.setenv("HOME", str(home))
    (home / "cache").mkdir(parents=True)
    corpus = {**CORPUS, "path": str(home / "cache" / "f00d")}
    source = home / "my letters" / "letters.txt"
    run = save_run(home / "checkpoints" / "fox", corpus=corpus, sources=[str(source)], **{"from": str(home / "base")})
    run.log(step(1))
    text = report_page([run.directory])
    page = json.dumps(read_page(text))
    for folder in ("Jane", str(tmp_path), "my letters", "checkpoints"):
        assert folder not in text
    assert not re.findall(r"(?<![\w<.*])(?:/[\w.-]+){2,}|[A-Z]:\\", page)
    assert {"letters.txt", "base"} <= {
        value for table in run_data(run.directory)["tables"] for _, value in table["rows"]
    }


def test_the_page_of_a_run_from_windows_has_no_folder_of_that_machine(tmp_path: Path) -> None:
    run = save_run(tmp_path / "fox", corpus={**CORPUS, "path": r"C:\Users\Jane Doe\cache\f00d"})
    run.log(step(1))
    assert "Jane" not in report_page([run.directory])


@pytest.mark.parametrize("home", ["/", None])
def test_the_root_and_an_unknown_home_folder_are_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    pwd = pytest.importorskip("pwd")
    run = save_run(tmp_path / "fox")
    monkeypatch.delenv("HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # raises KeyError, as for a user without an entry
    assert run_report._without_folders(f"read/write of {run.directory}", run) == "read/write of fox"
