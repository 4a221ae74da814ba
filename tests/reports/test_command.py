"""`minigpt report`, and the page that training writes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest


def test_training_writes_a_page_except_with_no_report(run: Any, here: Path, tiny: list[str]) -> None:
    result = run("train", "fox.txt", *tiny)
    assert result.exit_code == 0, result.stderr
    assert "report: checkpoints/fox/report.html" in result.stderr
    page = (here / "checkpoints/fox/report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    without = run("train", "fox.txt", *tiny, "--no-report", "--name", "without")
    assert without.exit_code == 0
    assert not (here / "checkpoints/without/report.html").exists()
    assert "report" not in without.stderr


def test_a_page_that_cannot_be_written_does_not_fail_the_run(
    run: Any, here: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr("minigpt.reports.run_pages.write_report", fail)
    result = run("train", "fox.txt", *tiny)
    assert result.exit_code == 0
    assert "no report was written: ZeroDivisionError: no luck" in result.stderr
    assert "saved in" in result.stdout


def test_one_run_two_runs_and_the_newest(run: Any, here: Path, tiny: list[str]) -> None:
    run("train", "fox.txt", *tiny, "--no-report")
    run("train", "fox.txt", *tiny, "--no-report", "--name", "other", "--seed", "3")
    newest = run("report")
    assert newest.stdout.strip() == "checkpoints/other/report.html"
    assert run("report", "fox").stdout.strip() == "checkpoints/fox/report.html"
    both = run("report", "fox", "checkpoints/other")
    assert both.stdout.strip() == "checkpoints/fox/report-other.html"
    assert "<title>fox and other</title>" in (here / both.stdout.strip()).read_text(encoding="utf-8")
    (here / "pages").mkdir()
    assert run("report", "fox", "--output", "pages/mine.html").stdout.strip() == "pages/mine.html"
    assert (here / "pages/mine.html").exists()
    assert run("report", "fox", "--output", "pages/mine.html").exit_code == 0  # a report is replaced
    text = (here / "fox.txt").read_bytes()
    (here / "link.html").symlink_to("fox.txt")
    for other in ("fox.txt", "link.html", "pages"):
        refused = run("report", "fox", "--output", other)
        assert refused.exit_code == 1
        assert re.fullmatch(
            rf"minigpt: {other} (exists and is not a file that|is not a regular file).*\n", refused.stderr
        )
    assert (here / "fox.txt").read_bytes() == text
    assert run("report", "fox", "--output", "link.html", "--force").exit_code == 0
    assert (here / "link.html").is_symlink()
    assert (here / "fox.txt").read_bytes() != text


def test_wrong_input_is_one_line_on_stderr(run: Any, here: Path, tiny: list[str]) -> None:
    run("train", "fox.txt", *tiny, "--no-report")
    for arguments, message in [
        (["fox", "--output", "fox.txt/page.html"], "could not be written"),
        (["fox", "--output", "nowhere/page.html"], "could not be written: the folder nowhere does not exist"),
    ]:
        wrong = run("report", *arguments)
        assert wrong.exit_code == 1
        assert message in wrong.stderr
        assert wrong.stderr.count("\n") == 1
    assert not (here / "nowhere").exists()


def test_a_page_and_info_show_what_is_not_damaged_and_name_the_rest(run: Any, here: Path, tiny: list[str]) -> None:
    run("train", "fox.txt", *tiny, "--no-report")
    folder = here / "checkpoints/fox"
    record = json.loads((folder / "training.json").read_text())
    (folder / "training.json").write_text(json.dumps(record | {"corpus": 3, "result": {"step": -1}, "torch": [[]]}))
    lines = len((folder / "log.jsonl").read_text().splitlines())
    with (folder / "log.jsonl").open("a") as log:
        log.writelines(json.dumps({"step": 7, "loss": -number}) + "\n" for number in range(1, 9))
    damaged = [
        "not shown: checkpoints/fox/training.json is damaged: torch is [[]], not a string; copy it again",
        "not shown: checkpoints/fox/training.json is damaged: its 'corpus' is 3, not an object; copy it again",
        "not shown: checkpoints/fox/training.json is damaged: in its 'result': step is -1, not a whole number of at "
        "least 0; copy it again",
    ]
    shown = run("report", "fox")
    assert shown.exit_code == 0
    assert shown.stderr.splitlines() == [
        *damaged,
        f"not shown: checkpoints/fox/log.jsonl, line {lines + 1}: loss is -1, which is not valid; remove the line",
        f"not shown: checkpoints/fox/log.jsonl, line {lines + 2}: loss is -2, which is not valid; remove the line",
        "not shown: 6 more like these",
    ]
    page = (folder / "report.html").read_text()
    assert "learning rate" in page
    about = run("info", "fox")
    assert about.stderr.splitlines() == damaged
    assert "learning rate" in about.stdout
    (folder / "training.json").write_text("[")
    about = run("info", "fox")
    assert "not shown: checkpoints/fox/training.json is not JSON" in about.stderr
    assert "parameters" in about.stdout
