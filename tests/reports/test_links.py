"""Pages are not written through a link."""

import contextlib
from pathlib import Path

import pytest
from builders import new_model, new_run, snapshot

from minigpt.errors import CheckpointError
from minigpt.reports.run_pages import write_pages

RECORD = {"corpus": {"fingerprint": "f", "train_bytes": 9, "train_tokens": 9}}  # which the report needs


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
