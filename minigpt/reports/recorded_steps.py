"""What the command line proposes at the end of a run, kept in its record for the report."""

from collections.abc import Sequence
from typing import Any

from minigpt.cli.render.annotations import NextStep
from minigpt.data.source_files import path_from_here
from minigpt.shell import join
from minigpt.storage.names import plain_source
from minigpt.storage.run import Run
from minigpt.storage.run_record import RunRecord

_KEY = "next_steps"  # in training.json


def record_steps(run: Run, steps: Sequence[NextStep]) -> None:
    """Writes the proposals into the record of a run, without the folders of this machine.

    Raises: CheckpointError if it cannot be written.
    """
    record = run.record
    names = {name: plain_source(source) for source in record.sources for name in (source, path_from_here(source))}
    if record.base is not None:
        names[record.base] = plain_source(record.base)
    kept = [
        {
            "text": step.text,
            "commands": [join("minigpt", *(names.get(word, word) for word in command)) for command in step.commands],
        }
        for step in steps
    ]
    run.update(other={**record.other, _KEY: {"after": record.result and record.result.step, "steps": kept}})


def recorded_steps(record: RunRecord) -> list[dict[str, Any]]:
    """The proposals in a record: each with a `text` and `commands`. Empty if there are none, or damaged ones.

    Those from before the run was continued do not count.
    """
    kept = record.other.get(_KEY)
    if not isinstance(kept, dict) or record.result is None or kept.get("after") != record.result.step:
        return []
    steps = kept["steps"] if isinstance(kept.get("steps"), list) else []
    return [{"text": step["text"], "commands": step["commands"]} for step in steps] if all(map(_is_step, steps)) else []


def _is_step(step: object) -> bool:
    if not isinstance(step, dict):
        return False
    text, commands = step.get("text"), step.get("commands")
    return isinstance(text, str) and isinstance(commands, list) and all(isinstance(each, str) for each in commands)
