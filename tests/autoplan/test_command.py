"""What `minigpt train` measures before it trains."""

from pathlib import Path
from typing import Any

import pytest

from minigpt.config import TrainConfig
from minigpt.storage.run import Run as RunFolder


@pytest.mark.parametrize(
    ("natively", "flags", "dtype", "expected"),
    [
        (True, [], "bfloat16", "cpu, bfloat16: 2.0 times as fast here as float32"),
        (False, [], "float32", "cpu, float32: bfloat16 is no faster on this machine"),
    ],
)
def test_the_dtype_on_a_cpu_is_measured_printed_and_recorded_unless_it_is_given(
    run: Any, here: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch, natively: bool, flags: list[str],
    dtype: str, expected: str,
) -> None:  # fmt: skip
    def seconds_per_step(_model: object, config: TrainConfig, **_rest: object) -> float:
        return 0.1 if config.dtype == "bfloat16" else 0.2

    monkeypatch.setattr("minigpt.device.multiplies_bfloat16_faster", lambda: natively)
    monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", seconds_per_step)
    at = tiny.index("--dtype")
    command = ["train", "fox.txt", *tiny[:at], *tiny[at + 2 :], *flags]
    result = run(*command)
    assert result.exit_code == 0, result.output
    record = RunFolder.open(here / "checkpoints/fox").record
    assert ["device", expected, "--device --dtype"] in record.other["plan"]
    assert record.training.dtype == dtype
    # A resumed run keeps its dtype, whichever is faster on this machine.
    monkeypatch.setattr("minigpt.device.multiplies_bfloat16_faster", lambda: not natively)
    assert run(*command, "--resume", "--steps", "7").exit_code == 0
    assert RunFolder.open(here / "checkpoints/fox").record.training.dtype == dtype
