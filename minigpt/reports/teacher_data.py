"""The data of a run's teacher on a report page: its curve, and how it ended."""

from typing import Any

from minigpt.reports.page_data import LogLines, evaluation_curve, state_text
from minigpt.reports.record_tables import record_tables
from minigpt.storage.checkpoint import TRAINING
from minigpt.storage.files import exists
from minigpt.storage.run import Run, read_record


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


def teacher_parts(teacher: dict[str, Any] | None, tables: list[dict[str, Any]]) -> dict[str, Any]:
    """The parts of a page's data that show the teacher; a run without one has the same parts, which are empty."""
    rows = [] if teacher is None else [["state", teacher["state"]], *teacher["result"]]
    return {"teacher": teacher, "tables": [*tables, {"title": "Teacher", "rows": rows}]}
