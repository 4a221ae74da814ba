"""What holds for every test."""

import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.autoplan import throughput
from minigpt.reports import loss_curve

SECONDS_PER_STEP, DRAW_LOSS_CURVE = throughput.seconds_per_step, loss_curve.draw_loss_curve


def pytest_configure() -> None:
    """Lets Ctrl-C reach the programs that tests start: a shell's background job ignores it, and so would they."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Spares the garbage collector what all tests keep: torch's objects take a quarter of a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _plans_and_pages_take_little_time() -> Iterator[None]:
    """Measuring a step and drawing a loss curve take longer than training does in most tests.

    A plan measures a few steps. No curve is drawn, except in a test that has the fixture `loss_curves`.
    """

    def briefly(*arguments: Any, **options: Any) -> float:
        return SECONDS_PER_STEP(*arguments, **(options | {"seconds": 0.01}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(throughput, "seconds_per_step", briefly)
        patch.setattr(loss_curve, "draw_loss_curve", lambda *_: None)
        yield


@pytest.fixture
def loss_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss curves are drawn in this test."""
    monkeypatch.setattr(loss_curve, "draw_loss_curve", DRAW_LOSS_CURVE)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which holds fox.txt and corpus.txt, with its own cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("MINIGPT_CHECKPOINTS", raising=False)
    monkeypatch.setattr(
        "minigpt.shared_cores.load_monitor.OtherPrograms.cores", lambda _: 0.0
    )  # a plan notes a busy machine
    for name in ("fox.txt", "corpus.txt"):
        (tmp_path / name).write_text("the quick brown fox jumps over the lazy dog; " * 60)
    return tmp_path


@pytest.fixture
def exact_float32() -> Iterator[None]:
    """Full float32 products on a GPU, even if an earlier test has enabled TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(autouse=True)
def _plans_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans choose float32: which dtype is faster depends on the moment, and runs that are compared need the same."""
    monkeypatch.setattr("minigpt.device.multiplies_bfloat16_faster", lambda: False)


@pytest.fixture
def use() -> Iterator[Callable[[str], None]]:
    """Selects an instruction set until the end of the test."""
    from minigpt.native import compiled

    library = compiled.library()
    assert library is not None

    def choose(name: str) -> None:
        assert compiled.use(library, name) == name

    yield choose
    compiled.use(library)
