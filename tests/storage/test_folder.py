"""Folders that minigpt writes to: nothing is written, truncated or deleted through a link, and only own files go."""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builders import new_model, new_run, snapshot

from minigpt.errors import CheckpointError
from minigpt.storage.folder import Folder
from minigpt.storage.last_state import LastState
from minigpt.storage.run import Run
from minigpt.storage.run_record import Result

STATE = LastState({"a": torch.zeros(1)}, {"step": 1})
RECORD = {"corpus": {"fingerprint": "f", "train_bytes": 9, "train_tokens": 9}}  # which the report needs


def use_everything(run: Run) -> None:
    """Writes whatever a run writes."""
    run.lock()
    try:
        run.log({"step": 1, "loss": 1.0})
        run.flush_log()
        run.truncate_log(1, frozenset({"loss"}))
        run.save_best(new_model(n_layer=1), 1, 1.0)
        run.save_last(STATE)
        run.save_before_cooldown(STATE)
        run.update(result=Result(step=1, best_step=1, reason="length", seconds=1.0))
        run.subfolder("tensorboard")
    finally:
        run.unlock()


# PID stands for this process's; the names of tests must be the same in every process of pytest-xdist.
FILES = [
    ".lock", ".lock.json", "log.jsonl", "training.json", "README.md", "model.safetensors", "config.json",
    ".training.json.PID.tmp", ".model.safetensors.1.tmp", "last/state.safetensors",
    "last/.state.safetensors.PID.tmp", "last/.state.safetensors.7.tmp",
]  # fmt: skip


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("target", ["file", "missing"])
def test_no_file_that_a_link_leads_to_is_changed_or_created(
    tmp_path: Path, victim: Path, name: str, target: str
) -> None:
    run = new_run(tmp_path / "run", new_model(n_layer=1), record=RECORD)
    link = run.directory / name.replace("PID", str(os.getpid()))
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    if name == "training.json":  # readable, so that the run opens
        shutil.copy(run.directory / "config.json", victim / "file")
        (victim / "file").write_text('{"format": 1}')
    link.symlink_to(victim / target)
    before = snapshot(victim)
    with contextlib.suppress(CheckpointError):
        use_everything(run)
    assert snapshot(victim) == before


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("name", ["last", "tensorboard"])
@pytest.mark.parametrize("where", ["victim", "missing"])
def test_nothing_is_written_or_swept_in_a_folder_that_a_link_leads_to(
    tmp_path: Path, victim: Path, name: str, where: str
) -> None:
    run = new_run(tmp_path / "run", new_model(n_layer=1), record=RECORD)
    (run.directory / name).symlink_to(tmp_path / where)
    before = snapshot(victim)
    message = rf"^{run.directory}/{name} is a symbolic link, and minigpt writes only inside {run.directory}; replace"
    with pytest.raises(CheckpointError, match=message) as refused:
        use_everything(run)
    assert "\n" not in str(refused.value)
    assert snapshot(victim) == before
    assert not (tmp_path / "missing").exists()
    Run.open(run.directory)  # reading through links stays allowed


@pytest.mark.usefixtures("calls")
def test_the_runs_folder_and_the_one_around_it_may_be_links(tmp_path: Path) -> None:
    new_run(tmp_path / "disk" / "runs" / "fox", new_model(n_layer=1))
    (tmp_path / "checkpoints").symlink_to(tmp_path / "disk" / "runs")
    (tmp_path / "disk" / "runs" / "linked").symlink_to("fox")
    run = Run.open(tmp_path / "checkpoints" / "linked")
    use_everything(run)
    assert run.last_progress() == {"step": 1}
    assert (tmp_path / "disk" / "runs" / "fox" / "last" / "state.safetensors").is_file()


@pytest.mark.parametrize("content", [b"mine", None])
def test_a_lock_file_with_content_is_not_truncated(tmp_path: Path, content: bytes | None) -> None:
    run = new_run(tmp_path / "run", new_model(n_layer=1), record=RECORD)
    lock = run.directory / ".lock"
    lock.mkdir() if content is None else lock.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"\.lock is not the empty file that minigpt creates; remove it$"):
        run.lock()
    assert content is None or lock.read_bytes() == content


@pytest.mark.usefixtures("calls")
def test_only_temporary_files_with_a_name_of_ours_are_removed(tmp_path: Path) -> None:
    theirs = {".notes.17.tmp", ".training.json.x.tmp", "training.json.18.tmp", ".training.json.19.tmp.bak"}
    for name in (".training.json.12.tmp", *theirs):
        (tmp_path / name).write_bytes(b"{")
    (tmp_path / ".training.json.20.tmp").symlink_to(tmp_path / ".notes.17.tmp")
    (tmp_path / ".training.json.21.tmp").mkdir()
    Folder(tmp_path).remove_temporary_files({"training.json"})
    assert {path.name for path in tmp_path.iterdir()} == {*theirs, ".training.json.20.tmp", ".training.json.21.tmp"}


def test_every_file_that_a_run_writes_leaves_a_temporary_file_that_is_recognized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path / "run", new_model(n_layer=1), record=RECORD)
    replace, names = os.replace, set()

    def keep_a_copy(source: str, target: str, **options: int) -> None:
        names.add(target)
        place = Path(f"/proc/self/fd/{options['src_dir_fd']}").readlink()
        shutil.copy(place / source, place / f".{target}.4194305.tmp")
        replace(source, target, **options)

    if not Path("/proc/self/fd").exists():
        pytest.skip("the folder of a descriptor is read from /proc")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", keep_a_copy)
        use_everything(run)
    assert names >= {
        ".lock.json",
        "training.json",
        "state.safetensors",
        "model.safetensors",
        "log.jsonl",
    }
    names.remove(".lock.json")  # written before the folder is swept
    assert len(list(run.directory.rglob(".*.tmp"))) == len(names)
    run.lock()
    assert list(run.directory.rglob(".*.tmp")) == []


@pytest.mark.usefixtures("calls")
def test_a_folder_that_was_deleted_moved_or_replaced_is_not_written(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("Windows refuses to move an open folder")
    path = tmp_path / "folder"
    path.mkdir()
    folder = Folder(path)
    assert folder.is_in_place()
    path.rename(tmp_path / "moved")
    for there in (False, True):
        if there:
            path.mkdir()
        assert not folder.is_in_place()
        act: Callable[[], object]
        for act in (
            lambda: folder.write("file", b"new"),
            lambda: folder.subfolder("last"),
            lambda: folder.open_to_append("file"),
        ):
            with pytest.raises(CheckpointError, match=f"^{path} was deleted, moved or replaced while it was in use$"):
                act()
    assert list(path.iterdir()) == list((tmp_path / "moved").iterdir()) == []
    (tmp_path / "moved").rename(path)
    assert folder.is_in_place()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.usefixtures("calls")
def test_nothing_is_appended_to_a_pipe_even_if_a_program_reads_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.jsonl")
    reader = os.open(tmp_path / "log.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(CheckpointError, match=r"log\.jsonl is not a regular file; remove it$"):
            Folder(tmp_path).open_to_append("log.jsonl")
    finally:
        os.close(reader)
