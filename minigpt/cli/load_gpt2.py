"""`minigpt load-gpt2`: imports OpenAI's GPT-2, from the Hugging Face hub or a local copy."""

from pathlib import Path
from typing import Annotated

import typer

from minigpt.cli.options import CheckpointsOption, DeviceOption, command_line


def load_gpt2(
    model: Annotated[str, typer.Argument(help="gpt2, gpt2-medium, gpt2-large or gpt2-xl")] = "gpt2",
    source: Annotated[
        str | None, typer.Option("--from", help="a local folder or .safetensors file instead of the hub")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="what to call it [the model's name]")] = None,
    device: DeviceOption = "auto",
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Import GPT-2's weights and check them against published outputs.

    They come from the Hugging Face hub (`openai-community/...`), through its cache: an interrupted download goes on,
    HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE=1 work. `--from` reads a local copy instead.

    Examples:

    - `minigpt load-gpt2`

    - `minigpt load-gpt2 gpt2-medium --from ~/models/gpt2-medium`
    """
    from minigpt.cli.render import console, facts, size
    from minigpt.interop.pretrained import import_gpt2
    from minigpt.storage.checkpoint import WEIGHTS

    out = console()
    # No spinner: huggingface_hub draws its own progress on the same stream.
    imported = import_gpt2(model, source=source, name=name, checkpoints=checkpoints, device=device)
    checkpoint = imported.checkpoint
    config = checkpoint.model.config
    rows = {
        "from": imported.source,
        "saved in": str(checkpoint.directory),
        "parameters": f"{config.n_parameters:,}",
        "size": size((checkpoint.directory / WEIGHTS).stat().st_size),
        **{field: str(value) for field, value in config.to_dict().items()},
    }
    out.print(facts(checkpoint.directory.name, rows))
    for note in imported.notes:
        out.print(note, markup=False)
    out.print(f"published outputs: {imported.verification.status}", markup=False)
    for line in imported.verification.details:
        out.print(f"  {line}", markup=False)
    name = checkpoint.directory.name
    print(command_line("generate", "Once upon a time", "--model", name, checkpoints=checkpoints))
