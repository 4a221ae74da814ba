"""Pages are not written through a link."""

import contextlib
from pathlib import Path

import pytest
from builders import new_model, new_run

from minigpt.errors import CheckpointError
from minigpt.reports.run_pages import write_pages
from minigpt.storage import folder as folder_module

RECORD = {"corpus": {"fingerprint": "f", "train_bytes": 9, "train_tokens": 9}}  # which the report needs


def snapshot(folder: Path) -> dict[str, bytes | str | None]:
    """Everything in a folder: the bytes of files, the targets of links, None for folders."""

    def content(path: Path) -> bytes | str | None:
        if path.is_symlink():
            return str(path.readlink())
        return path.read_bytes() if path.is_file() else None

    return {str(path.relative_to(folder)): content(path) for path in folder.rglob("*")}


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


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("name", ["loss.png", "report.html"])
@pytest.mark.parametrize("target", ["file", "missing"])
def test_no_file_that_a_link_to_a_page_leads_to_is_changed_or_created(
    tmp_path: Path, victim: Path, name: str, target: str
) -> None:
    run = new_run(tmp_path / "run", new_model(n_layer=1), record=RECORD)
    run.log({"step": 1, "loss": 1.0})
    run.flush_log()
    (run.directory / name).symlink_to(victim / target)
    before = snapshot(victim)
    with contextlib.suppress(CheckpointError):
        list(write_pages(run))
    assert snapshot(victim) == before


def test_a_temporary_file_of_the_report_is_recognized(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", new_model(n_layer=1), record=RECORD)
    list(write_pages(run))
    assert (run.directory / "report.html").exists()
    temporary = run.directory / ".report.html.4194305.tmp"
    temporary.touch()
    run.lock()
    assert not temporary.exists()
