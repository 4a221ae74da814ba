"""The record of a training run: training.json as written, by Python users too, and damaged."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from builders import new_run
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import GPTConfig, TrainConfig
from minigpt.errors import CheckpointError
from minigpt.run_options import RunOptions
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.run import Run
from minigpt.storage.run_record import Change, Environment, Result, RunRecord

WRITTEN = Path(__file__).with_name("training_format_1.json").read_text()


def test_a_record_opens_and_is_written_unchanged() -> None:
    entries = json.loads(WRITTEN)
    record = RunRecord.from_dict(entries)
    assert record.sources == ("/home/ada/fox.txt",)
    assert record.model == GPTConfig(vocab_size=257, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    assert record.training is not None
    assert (record.training.steps, record.training.learning_rate, record.training.seed) == (8, 0.001, 5)
    assert record.asked is not None
    assert record.asked.given >= {"tokenizer", "n_layer", "batch_size"}
    assert record.asked.training.batch_size == 4
    assert record.corpus is not None
    assert record.corpus.validation_tokens == 268
    assert record.baselines is not None
    assert {one.name for one in record.baselines.measured} == {"bytes", "gzip", "5-gram", "xz"}
    assert record.changes == (Change(step=6, option="seed", before=1337, after=5),)
    assert record.result is not None
    assert record.result.best_step == 8
    assert record.environment is not None
    assert record.environment.gpu is None
    for name, group in (("training", record.training), ("reading", record.reading)):
        known = type(group).__dataclass_fields__  # those of an edge that is missing are omitted
        entries[name] = {key: value for key, value in entries[name].items() if key in known}
    assert json.loads(json.dumps(record.to_dict())) == entries
    assert RunRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


@pytest.mark.parametrize("expected", [[1.8, 2.1], None])
def test_the_expected_range_is_recorded(expected: list[float] | None) -> None:
    record = RunRecord.from_dict(json.loads(WRITTEN) | {"forecast": expected})
    assert record.expected == (None if expected is None else tuple(expected))
    assert RunRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


@pytest.mark.parametrize("entries", [{}, {"started": "now"}, {"training": {"seed": 7}}, {"corpus": {}, "result": None}])
def test_a_record_of_a_run_begun_in_python_may_have_few_entries(tmp_path: Path, entries: dict[str, Any]) -> None:
    run = new_run(tmp_path / "run", record=entries)
    record = Run.open(run.directory).record
    assert record == run.record
    assert record.corpus is None
    assert record.baselines is None
    assert load_checkpoint(run.directory, "cpu").record == record


def test_settings_that_are_newer_than_a_record_have_their_defaults() -> None:
    entries = json.loads(WRITTEN)
    del entries["training"]["spike_threshold"]
    del entries["reading"]["encoding_errors"]
    record = RunRecord.from_dict(entries)
    assert record.training is not None
    assert record.reading is not None
    assert (record.training.spike_threshold, record.reading.encoding_errors) == (8.0, "strict")


def test_entries_that_this_version_does_not_use_are_kept_and_settings_ignored(tmp_path: Path) -> None:
    record = {"note": {"mine": [1, 2]}, "training": {"seed": 7, "momentum_of_the_future": 1}, "asked": {"future": 1}}
    run = new_run(tmp_path / "run", record=record)
    run.update(result=Result(step=3))
    written = json.loads((run.directory / "training.json").read_text())
    assert written["note"] == {"mine": [1, 2]}
    assert written["result"]["step"] == 3
    assert Run.open(run.directory).record.training == TrainConfig(seed=7)
    assert Run.open(run.directory).record.asked == RunOptions()


def test_a_training_json_that_a_user_wrote_is_not_the_record_of_a_run(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    (run.directory / "training.json").write_text('{"corpus": "Moby Dick", "result": 3}')
    checkpoint = load_checkpoint(run.directory, "cpu")
    assert checkpoint.training == {"corpus": "Moby Dick", "result": 3}
    assert checkpoint.record is None


@pytest.mark.parametrize(
    ("steps", "changes", "expected"),
    [
        ([0, 5, 9], [], [0, 1, 2]),
        ([0, 5, 9], [(5, "eval_every")], [0, 1, 2]),
        ([0, 5, 9], [(5, "text")], [1, 2]),  # resuming replaced the evaluation at step 5
        ([0, 5, 9], [(5, "loss_on")], [1, 2]),
        ([0, 5, 9], [(0, "text"), (5, "context_length")], [1, 2]),
        ([0, 5], [(5, "text"), (9, "learning_rate")], [1]),
        ([0, 5], [(7, "text")], []),
    ],
)
def test_evaluations_before_a_change_of_what_they_measure_are_not_comparable(
    steps: list[int], changes: list[tuple[int, str]], expected: list[int]
) -> None:
    record = RunRecord(changes=tuple(Change(step=step, option=option) for step, option in changes))
    log: list[dict[str, Any]] = [{"step": step, "validation_loss": 1.0} for step in steps]
    others = [{"step": 9, "loss": 1.0}, {"step": 9, "validation_loss": None}]
    assert record.comparable_evaluations([*log, *others]) == [log[number] for number in expected]


def test_json_has_no_nan_so_the_result_has_none() -> None:
    result = Result(step=3, validation_loss=math.nan, seconds=math.inf)
    assert (result.step, result.validation_loss, result.seconds) == (3, None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": "text.txt"}, "its 'corpus' is 'text.txt', not an object"),
        ({"corpus": {"fingerprint": "a"}}, "in its 'corpus': train_bytes is None, not a whole number"),
        ({"environment": {"cores": "two"}}, "in its 'environment': cores is 'two', not a whole number"),
        ({"sources": "fox.txt"}, "its 'sources' is 'fox.txt', not a list"),
        ({"sources": [3]}, "in its 'sources': 3 is not a string"),
        ({"training": {"batch_size": 0}}, "in its 'training': batch_size (0) must be at least 1"),
        ({"training": {"learning_rate": "high"}}, "in its 'training': learning_rate ('high') must be a number"),
        ({"asked": {"n_layer": -1}}, "in its 'asked': n_layer (-1) must be at least 1"),
        ({"asked": 3}, "its 'asked' is 3, not an object"),
        ({"changes": [{"step": 1}]}, "in its 'changes': option is None, not a string"),
        ({"result": {"step": True}}, "in its 'result': step is True, not a whole number"),
        ({"baselines": {"fingerprint": "a", "measured": 3}}, "in its 'baselines': measured is 3, not a list"),
        ({"started": 3}, "started is 3, not a string"),
        ({"forecast": [1.8]}, "forecast is [1.8], not two numbers"),
        ({"forecast": ["low", "high"]}, "forecast is ['low', 'high'], not two numbers"),
    ],
)
def test_a_damaged_record_is_refused_in_one_sentence_that_names_the_file(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    run = new_run(tmp_path / "run")
    path = run.directory / "training.json"
    path.write_text(json.dumps(json.loads(WRITTEN) | changes))
    with pytest.raises(CheckpointError, match=re.escape(f"{path} is damaged: {message}")) as refused:
        Run.open(run.directory)
    assert str(refused.value).endswith("; copy it again")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(st.sampled_from(sorted(json.loads(WRITTEN))), st.none() | st.text(), json_values)
def test_a_record_with_any_content_opens_or_is_reported_as_damaged(key: str, inner: str | None, value: object) -> None:
    entries = json.loads(WRITTEN)
    part = entries[key]
    if isinstance(part, dict):
        names = sorted(part)
        part[inner if inner is not None else names[0]] = value
    entries[key] = part if isinstance(part, dict) else value
    try:
        record = RunRecord.from_dict(entries)
    except CheckpointError:
        return
    json.dumps(record.to_dict())


def test_an_environment_may_lack_entries() -> None:
    assert RunRecord.from_dict({"environment": {"threads": 2}}).environment == Environment(threads=2)
