"""The baselines in the record of a run."""

import json

from scripts import ROOT

from minigpt.baselines.baselines import recorded_baselines
from minigpt.storage.run_record import RunRecord

WRITTEN = (ROOT / "tests" / "storage" / "training_format_1.json").read_text()


def test_the_recorded_baselines_are_in_order_the_worst_first() -> None:
    record = RunRecord.from_dict(json.loads(WRITTEN))
    assert [one.name for one in recorded_baselines(record)] == ["bytes", "gzip", "5-gram", "xz"]
    assert recorded_baselines(RunRecord.from_dict({"started": "now"})) == []


def test_baselines_of_another_text_are_not_compared() -> None:
    entries = json.loads(WRITTEN)
    entries["baselines"]["fingerprint"] = "another text"
    assert recorded_baselines(RunRecord.from_dict(entries)) == []
