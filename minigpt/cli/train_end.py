"""What `minigpt train` prints after a run: what to do next, or how to resume it."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.cli.options import command_line
from minigpt.cli.render.terminal import note, write

if TYPE_CHECKING:
    from minigpt.cli.render.annotations import Annotations
    from minigpt.runs.job import Job
    from minigpt.storage.run import Run


def print_next_steps(job: "Job", checkpoints: Path, annotations: "Sequence[Annotations]") -> None:
    """What would make the model better, and a command that tries it, by default with words of the training text."""
    from minigpt.cli.example_prompt import example_prompt

    for step in chain.from_iterable(each.next_steps(job) for each in annotations):
        note(step.text)
        for command in step.commands:
            note(f"  {command_line(*command, checkpoints=checkpoints)}")
    if first := next(filter(None, (each.first_try(job) for each in annotations)), None):
        note(first.text)
        for command in first.commands:
            write(command_line(*command, checkpoints=checkpoints))
        return
    prompt, name = example_prompt(job.corpus), job.run.directory.name
    note("try it with:")
    words = [] if prompt is None else [prompt]
    reading = job.run.record.reading
    if words and reading is not None and reading.special_tokens:
        words.append("--special-tokens")
    write(command_line("generate", *words, "--model", name, checkpoints=checkpoints))


def print_how_to_resume(job: "Job", checkpoints: Path) -> None:
    saved, command = how_to_resume(job.run, checkpoints)
    note(f"stopped: {saved}; continue with:")
    note(command)


def how_to_resume(run: "Run", checkpoints: Path, *options: str) -> tuple[str, str]:
    """What is saved of a run that ended early, and the command that continues from it with these options."""
    from minigpt.runs.job import stage_state
    from minigpt.runs.saved_state import last_state, weights_without_state

    directory, command = run.directory, ("--resume", "--name", run.directory.name)
    if (step := weights_without_state(run)) is not None:
        saved, command = (
            f"only the weights of step {step:,} are saved in {directory}",
            ("TEXT", "--from", directory.name),
        )
    elif (stage := stage_state(run)) is not None and stage.saved:
        saved = f"{stage.saved} is saved in {directory}"
    elif (state := last_state(run)) is not None:
        saved = f"step {state.step:,} is saved in {directory}"
    else:
        saved = "nothing was saved yet"
    return saved, command_line("train", *command, *options, checkpoints=checkpoints)
