"""`minigpt rm`: removes runs."""

from pathlib import Path
from typing import Annotated

import typer

from minigpt.cli.options import CheckpointsOption, run_argument
from minigpt.cli.render.terminal import note
from minigpt.tokenizer.display import one_line
from minigpt.units import size

_SHOWN = 5  # names of files


def remove(
    names: Annotated[list[str], run_argument(help="names of runs; minigpt list shows them", metavar="RUN")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="remove without asking")] = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Remove runs with everything in their folders: weights, log, report, and the states that --resume needs.

    Asks first, and shows what is removed. Refuses a run that a process is training, and a folder that holds no run.

    Examples:

    - `minigpt rm sherlock_holmes`
    - `minigpt rm test test-2 --yes`
    """
    from minigpt.removal.remove_run import find_removable, remove_run

    runs = [find_removable(name, checkpoints) for name in dict.fromkeys(names)]
    for run in runs:
        note(f"{run.directory}: {size(run.disk_bytes)}")
        if run.others:
            shown = ", ".join(run.others[:_SHOWN]) + (" …" if len(run.others) > _SHOWN else "")
            note(f"  also in this folder, and not written by minigpt: {shown}")
    what = one_line(str(runs[0].directory)) if len(runs) == 1 else f"these {len(runs)} runs"
    if not yes and not typer.confirm(f"Remove {what}? This cannot be undone.", err=True):
        note("nothing was removed")
        raise typer.Exit(1)
    for run in runs:
        remove_run(run)
        note(f"removed {run.directory}")
