"""What holds for every test."""

import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders import finished_run
from click.testing import Result
from typer.testing import CliRunner

from minigpt import edges
from minigpt.cli.app import app
from minigpt.data.corpus import Corpus
from minigpt.storage import folder as folder_module

DRAW_LOSS_CURVE = edges.load("minigpt.reports.loss_curve:draw_loss_curve") if edges.is_installed("reports") else None


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

    with pytest.MonkeyPatch.context() as patch:
        if edges.is_installed("autoplan"):
            measure = edges.load("minigpt.autoplan.throughput:seconds_per_step")
            patch.setattr(
                "minigpt.autoplan.throughput.seconds_per_step",
                lambda *arguments, **options: measure(*arguments, **(options | {"seconds": 0.01})),
            )
        if DRAW_LOSS_CURVE is not None:
            patch.setattr("minigpt.reports.loss_curve.draw_loss_curve", lambda *_: None)
        yield


@pytest.fixture
def no_shipped_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models are those in the folder of checkpoints."""
    monkeypatch.setattr("minigpt.storage.shipped_models.provided", lambda _: ())


@pytest.fixture
def steady_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan finds that a step takes a tenth of a second; without measuring there is nothing to change."""
    if edges.is_installed("autoplan"):
        monkeypatch.setattr("minigpt.autoplan.throughput.seconds_per_step", lambda *_, **__: 0.1)


@pytest.fixture
def loss_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss curves are drawn in this test."""
    monkeypatch.setattr("minigpt.reports.loss_curve.draw_loss_curve", DRAW_LOSS_CURVE)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which holds fox.txt and corpus.txt, with its own cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("MINIGPT_CHECKPOINTS", raising=False)
    if edges.is_installed("shared_cores"):  # a plan notes a busy machine
        monkeypatch.setattr("minigpt.shared_cores.load_monitor.OtherPrograms.cores", lambda _: 0.0)
    for name in ("fox.txt", "corpus.txt"):
        (tmp_path / name).write_text("the quick brown fox jumps over the lazy dog; " * 60)
    return tmp_path


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A sentence 60 times, in bytes."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "fox.txt").write_text("the quick brown fox jumps over the lazy dog; " * 60)
    return Corpus.build([folder / "fox.txt"], "bytes", cache=folder / "cache")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a run of six steps, `checkpoints/fox`, has finished."""
    folder = tmp_path_factory.mktemp("finished")
    finished_run(folder)
    return folder


@pytest.fixture
def run(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `minigpt` with these arguments, in this process and the current folder."""
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: str, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(app, list(arguments), input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def tiny() -> list[str]:
    """The options of a training run that takes about a second."""
    return ["--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--context-length", "16", "--batch-size", "4",
            "--tokenizer", "bytes", "--steps", "6", "--eval-every", "3", "--device", "cpu",
            "--dtype", "float32"]  # fmt: skip


@pytest.fixture(autouse=True)
def _plans_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans choose float32: which dtype is faster depends on the moment, and runs that are compared need the same."""
    monkeypatch.setattr("minigpt.device.multiplies_bfloat16_faster", lambda: False)


@pytest.fixture(params=["descriptors", "paths"])
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with calls relative to an open folder, and with calls by path as on Windows."""
    if request.param == "paths":
        monkeypatch.setattr(folder_module, "_HAS_DIR_FD", False)
        monkeypatch.setattr(folder_module, "_NO_LINK", 0)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder elsewhere that has what a run's folder has."""
    path = tmp_path / "victim"
    (path / "last").mkdir(parents=True)
    for name in ("file", "training.json", "last/.state.safetensors.1.tmp", ".training.json.1.tmp", "loss.png"):
        (path / name).write_bytes(b"{precious}")
    return path
