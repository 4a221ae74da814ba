"""`minigpt train` where its pages cannot be made."""

from typing import Any

import pytest


def test_a_finished_run_does_not_fail_because_of_its_curve(
    run: Any, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw_loss_curve(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("minigpt.reports.loss_curve.draw_loss_curve", draw_loss_curve)
    result = run("train", "fox.txt", *tiny, "--no-report")
    assert result.exit_code == 0
    assert "no loss curve was drawn: OSError: No space left on device" in result.stderr
    assert result.stdout.splitlines()[-1].startswith("minigpt generate")
