"""The loss curve: its lines, its second axis, and its baselines."""

from pathlib import Path
from typing import Any

import pytest

from minigpt.reports.loss_curve import bits_per_nat, draw_loss_curve, moving_average

LOG: list[dict[str, Any]] = [
    {"step": 0, "validation_loss": 6.0, "bits_per_byte": 3.0},
    *({"step": step, "loss": 6.0 - step / 10} for step in range(1, 11)),
    {"step": 10, "validation_loss": 5.0, "bits_per_byte": 2.5},
]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved, in order."""
    figure = pytest.importorskip("matplotlib.figure").Figure
    figures: list[Any] = []
    save = figure.savefig
    monkeypatch.setattr(figure, "savefig", lambda self, *args, **kw: (figures.append(self), save(self, *args, **kw))[1])
    return figures


def test_baselines_are_lines_except_those_that_the_untrained_model_beats(tmp_path: Path, drawn: list[Any]) -> None:
    draw_loss_curve(LOG, tmp_path / "loss.png", {"bytes": 4.5, "gzip": 2.8, "xz": 2.1})
    (axes,) = drawn[0].axes
    assert {text.get_text(): text.xy[1] for text in axes.texts} == pytest.approx({"gzip": 5.6, "xz": 4.2})
    dashed = [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--"]
    assert dashed == pytest.approx([5.6, 4.2])
    assert (tmp_path / "loss.png").stat().st_size > 1000


def test_the_second_axis_is_in_bits_per_byte(tmp_path: Path, drawn: list[Any]) -> None:
    draw_loss_curve(LOG, tmp_path / "loss.svg")
    (second,) = drawn[0].axes[0].child_axes
    low, high = drawn[0].axes[0].get_ylim()
    assert second.get_ylim() == pytest.approx((low / 2, high / 2))


def test_a_loss_that_is_nan_or_infinite_is_omitted(tmp_path: Path, drawn: list[Any]) -> None:
    odd: list[dict[str, Any]] = [{"step": 11, "loss": None}, {"step": 11, "validation_loss": None}]
    draw_loss_curve([*LOG, *odd], tmp_path / "loss.png")
    lines = drawn[0].axes[0].lines
    assert [max(line.get_xdata()) for line in lines] == [10, 10, 10]


def test_bits_per_nat_are_those_of_the_last_evaluation() -> None:
    assert bits_per_nat(LOG) == 0.5
    assert bits_per_nat([*LOG, {"step": 11, "validation_loss": 4.0, "bits_per_byte": 3.0}, {"loss": 1.0}]) == 0.75
    assert bits_per_nat([{"step": 1, "loss": 3.0}]) is None


def test_the_moving_average_is_the_mean_of_the_neighbors() -> None:
    assert moving_average([]) == []
    assert moving_average([3.0]) == [3.0]
    assert moving_average([1.0, 2.0, 6.0]) == [1.5, 3.0, 4.0]
    line = [float(value) for value in range(200)]
    assert moving_average(line)[100] == 100.0  # centered, so it does not lag
    assert moving_average(line)[0] == 2.0
