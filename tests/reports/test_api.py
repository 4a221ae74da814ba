"""The report of a run that is started in Python."""

import signal
from pathlib import Path
from typing import Any

import pytest

import minigpt
from minigpt.training.evaluation import Evaluator

SETTINGS: dict[str, Any] = {
    "n_layer": 1, "n_head": 2, "n_embd": 16, "context_length": 16, "batch_size": 4, "tokenizer": "bytes", "steps": 6,
    "eval_every": 3, "device": "cpu", "dtype": "float32", "dropout": 0.1,
}  # fmt: skip


def test_ctrl_c_during_the_last_evaluation_keeps_the_result_and_the_report(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert (here / "checkpoints" / "late" / "report.html").exists()
