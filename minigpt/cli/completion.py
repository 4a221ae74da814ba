"""What the shell completes after Tab: names of runs and models, formats, presets. It reads names only."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import typer

_DEFAULT = Path("checkpoints")


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of the runs and models in the folder of --checkpoints, or of its environment variable."""
    from minigpt.storage.model_list import model_names

    checkpoints = ctx.params.get("checkpoints") or _DEFAULT
    return [name for name in model_names(Path(checkpoints)) if name.startswith(incomplete) and name.isprintable()]


run_option = partial(typer.Option, autocompletion=complete_runs)
run_argument = partial(typer.Argument, autocompletion=complete_runs)


def complete_from(*choices: str) -> Callable[[str], list[str]]:
    """Completes one of these words."""

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete
