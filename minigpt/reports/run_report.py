"""The report of a run as an HTML page, made from its record and its log."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minigpt.errors import CheckpointError, MinigptError
from minigpt.inspection.page import page
from minigpt.reports.page_data import Line, LogLines, evaluation_curve, page_data, passage_data, state_text
from minigpt.reports.record_tables import record_tables
from minigpt.storage.checkpoint import TRAINING
from minigpt.storage.files import exists
from minigpt.storage.folder import replace_file, wrap_write_errors
from minigpt.storage.names import last_part
from minigpt.storage.run import Run, read_record
from minigpt.tokenizer.tokenizer import Tokenizer

KIND = "report"
SCRIPTS = ("chart", "report", "headline", "curves", "samples", "surprisal", "record")  # in assets/, in this order


def report_page(
    directories: Sequence[Path],
    problems: list[str] | None = None,
    *,
    live: dict[str, Any] | None = None,
) -> str:
    """The page on one run, or on several side by side; an interrupted run is shown up to the end of its log.

    With `live`, how far a run has come that is training, the page reloads itself.

    With a list of `problems`, damaged parts of the record and lines of the log are not shown, and the list gets a
    sentence on each.
    Raises: CheckpointError for a folder without a run, or without such a list for a damaged record or log.
    """
    runs = [run_data(directory, problems, is_training=live is not None) for directory in directories]
    for run, name in zip(runs, distinct_names(directories), strict=True):
        run["name"] = name
    scripts = list(SCRIPTS) if live is None else [*SCRIPTS, "live"]
    return page(
        " and ".join(run["name"] for run in runs), scripts, {"runs": runs, "live": live}, KIND, "minigpt.reports"
    )


def write_report(
    directories: Sequence[Path], path: Path, problems: list[str] | None = None, *, live: dict[str, Any] | None = None
) -> None:
    """Writes that page to a file, atomically.

    Raises: CheckpointError as `report_page`, or if the file cannot be written or its folder does not exist.
    """
    with wrap_write_errors(path):
        has_folder = path.parent.is_dir()
    if not has_folder:
        raise CheckpointError(f"{path} could not be written: the folder {path.parent} does not exist; create it first")
    replace_file(path, report_page(directories, problems, live=live).encode())


def run_data(directory: Path, problems: list[str] | None = None, *, is_training: bool = False) -> dict[str, Any]:
    """The data of a run on a page.

    Raises: CheckpointError as `report_page`.
    """
    if not (directory / TRAINING).exists():
        raise CheckpointError(f"{directory} holds no training run (no {TRAINING}), so there is nothing to report")
    run = Run(directory, read_record(directory, problems))
    lines = LogLines.of(run.read_log(problems))
    passage, why_no_passage = _passage(run, lines.evaluations)
    data = page_data(run.record, directory.resolve().name, lines, is_training=is_training)
    teacher = teacher_data(run, problems)
    rows = [] if teacher is None else [["state", teacher["state"]], *teacher["result"]]
    tables = [*data["tables"], {"title": "Teacher", "rows": rows}]
    return {**data, "teacher": teacher, "tables": tables, "passage": passage, "whyNoPassage": why_no_passage}


def distinct_names(directories: Sequence[Path]) -> list[str]:
    """The folders' names, with as many of the folders above as it takes to tell them apart."""
    parts = [directory.resolve().parts for directory in directories]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [directory.resolve().name for directory in directories]  # the same run twice


def _passage(run: Run, evaluations: Sequence[Line]) -> tuple[dict[str, Any] | None, str]:
    """The validation passage with the surprisal of each token at each evaluation; None, and the reason, without one."""
    if not any(line.get("surprise") for line in evaluations):
        corpus = run.record.corpus
        without_text = corpus is not None and not corpus.validation_bytes
        return None, "no text is held out" if without_text else "no evaluation has ended"
    try:
        return passage_data(evaluations, Tokenizer.load(run.directory)), ""
    except MinigptError as error:  # the page shows the rest of the run
        return None, _without_folders(str(error), run)


def _without_folders(text: str, run: Run) -> str:
    """An error without the folders of this machine: the page may be given to other people."""
    corpus = run.record.corpus
    folders = [str(run.directory), str(run.directory.resolve())]
    if corpus is not None and corpus.path is not None:
        folders += [corpus.path, str(Path(corpus.path).parent)]
    for folder in sorted(filter(None, folders), key=len, reverse=True):
        if folder not in (".", "/"):
            text = text.replace(folder, last_part(folder))
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  (Path.home raises an error if it is unknown)
    return text.replace(str(home), "~") if home.name else text  # the root has no name


def teacher_data(run: Run, problems: list[str] | None = None) -> dict[str, Any] | None:
    """The teacher of a run; None if it has none.

    With a list of `problems`, damaged parts are not shown, and the list gets a sentence on each. A link is not
    followed: it leads out of the run's folder.
    Raises: CheckpointError without such a list, if its record or its log is damaged.
    """
    path = run.teacher_path
    if path.is_symlink() or not exists(path / TRAINING):
        return None
    teacher = Run(path, read_record(path, problems))
    lines = LogLines.of(teacher.read_log(problems))
    return {
        "state": state_text(teacher.record.result, lines.steps),
        "validation": evaluation_curve(lines.evaluations),
        "result": record_tables(teacher.record)[0]["rows"],
    }
