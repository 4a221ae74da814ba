"""`minigpt load-gpt2`: imports a GPT-2 of any format, from the Hugging Face hub or a local path."""

from pathlib import Path
from typing import Annotated

import typer

from minigpt.cli.options import CheckpointsOption, DeviceOption, command_line


def load_gpt2(
    model: Annotated[
        str | None,
        typer.Argument(
            help="gpt2, gpt2-medium, gpt2-large, gpt2-xl, a model on the hub (owner/name), or a path [gpt2]"
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", help="a local folder or file of any format, or OWNER/NAME on the hub")
    ] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", help="a branch, tag or commit on the hub [main]")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="what to call it [the model's name]")] = None,
    device: DeviceOption = "auto",
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Import a GPT-2: OpenAI's own, any other on the hub, or a local one of any format.

    Formats: Hugging Face's (safetensors or pickled weights, in one file or several), nanoGPT's ckpt.pt, OpenAI's
    TensorFlow folders, GGUF. From the hub come only the files that are needed, through its cache: an interrupted
    download goes on, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE=1 work, and every file is checked against its hash.

    Examples:

    - `minigpt load-gpt2`

    - `minigpt load-gpt2 distilgpt2`

    - `minigpt load-gpt2 --from nanoGPT/out/ckpt.pt --name shakespeare`
    """
    from minigpt.cli.render.console import console, facts
    from minigpt.cli.render.units import size
    from minigpt.importers.gpt2 import import_gpt2
    from minigpt.storage.checkpoint import WEIGHTS

    out = console()
    # No spinner: huggingface_hub draws its own progress on the same stream.
    imported = import_gpt2(model, source=source, revision=revision, name=name, checkpoints=checkpoints, device=device)
    checkpoint = imported.checkpoint
    config = checkpoint.model.config
    rows = {
        "from": imported.source,
        "saved in": str(checkpoint.directory),
        "parameters": f"{config.n_parameters:,}",
        "size": size((checkpoint.directory / WEIGHTS).stat().st_size),
        "tokenizer": f"{checkpoint.tokenizer.name}, {checkpoint.tokenizer.vocab_size:,} words",
        **{field: str(value) for field, value in config.to_dict().items()},
    }
    out.print(facts(checkpoint.directory.name, rows))
    for note in imported.notes:
        out.print(f"note: {note}", markup=False)
    out.print(f"published outputs: {imported.verification.status}", markup=False)
    for line in imported.verification.details:
        out.print(f"  {line}", markup=False)
    name = checkpoint.directory.name
    print(command_line("generate", "Once upon a time", "--model", name, checkpoints=checkpoints))
