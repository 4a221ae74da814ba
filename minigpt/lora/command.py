"""`minigpt merge`: adds an adapter to the weights of its base model, as a whole model."""

from pathlib import Path
from typing import Annotated

import typer

from minigpt.cli.options import CheckpointsOption, command_line, model_option, run_argument
from minigpt.cli.render.terminal import note, write


def merge(
    model: Annotated[
        str | None, run_argument(help="a LoRA adapter's name or folder [default: the newest model]", metavar="ADAPTER")
    ] = None,
    base: Annotated[str | None, model_option(help="the base model [default: the one that the adapter names]")] = None,
    name: Annotated[
        str | None, typer.Option(help="the name to save it under [default: the adapter's, and -merged]")
    ] = None,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Merge a LoRA adapter into its base model: writes a whole GPT-2 folder, for export and for other programs.

    The adapter is a run of `minigpt train --lora`, or a folder of peft. It stays unchanged.

    Examples:

    - `minigpt merge letters`
    - `minigpt merge adapters/poems --model gpt2 --name poems`
    """
    from minigpt.lora.adapter_format import merge_adapter
    from minigpt.pretrained.open_model import find_model

    path = None if base is None else find_model(base, checkpoints)
    merged, notes = merge_adapter(model, into=name, base=path, checkpoints=checkpoints)
    for each in notes:
        note(f"note: {each}")
    note(f"saved in {merged.directory}: {merged.model.config.n_parameters:,} parameters")
    note("try it with:")
    name = merged.directory.name
    write(command_line("generate", "Once upon a time", "--model", name, checkpoints=checkpoints))
