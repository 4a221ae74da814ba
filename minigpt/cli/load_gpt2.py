"""`minigpt load-gpt2`: imports a GPT-2 of any format, from the Hugging Face Hub or a local path."""

from pathlib import Path
from typing import Annotated

import typer

from minigpt.cli.options import CheckpointsOption, DeviceOption, command_line
from minigpt.cli.render.terminal import note, write

_VERIFICATION = {"verified": "matches the published outputs:", "differs": "differs from the published outputs:"}


def load_gpt2(
    model: Annotated[
        str | None,
        typer.Argument(
            help="gpt2, gpt2-medium, gpt2-large, gpt2-xl, OWNER/NAME on the Hub, or a path [default: gpt2]",
            metavar="MODEL",
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", help="a local folder or file of any format, or OWNER/NAME on the Hub")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="a branch, tag or commit on the Hub [default: main]")] = None,
    name: Annotated[str | None, typer.Option(help="the name to save it under [default: the model's name]")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="none: read no tokenizer; texts are then token ids [default: the model's]")
    ] = None,
    device: DeviceOption = "auto",
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Import a GPT-2: OpenAI's, another from the Hugging Face Hub, or a local one of any format.

    Formats: Hugging Face folders, nanoGPT's ckpt.pt, OpenAI's TensorFlow folders, GGUF. Downloads from the Hub resume,
    are checked against their hashes, and follow HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE=1.

    Examples:

    - `minigpt load-gpt2`
    - `minigpt load-gpt2 distilgpt2`
    - `minigpt load-gpt2 --from nanoGPT/out/ckpt.pt --name shakespeare`
    """
    from minigpt.cli.render.console import console, facts, model_facts
    from minigpt.pretrained.gpt2 import import_gpt2
    from minigpt.storage.checkpoint import WEIGHTS

    out = console()
    # No spinner: huggingface_hub draws its own progress on the same stream.
    imported = import_gpt2(
        model, source=source, revision=revision, name=name, checkpoints=checkpoints, device=device, tokenizer=tokenizer
    )
    checkpoint = imported.checkpoint
    weight_bytes = (checkpoint.directory / WEIGHTS).stat().st_size
    rows = {"from": imported.source, "saved in": str(checkpoint.directory)}
    rows |= model_facts(checkpoint.model.config, checkpoint.tokenizer, weight_bytes)
    out.print(facts(checkpoint.directory.name, rows))
    for each in imported.notes:
        note(f"note: {each}")
    verification = imported.verification
    if verification.status in _VERIFICATION:
        note(_VERIFICATION[verification.status])
    for line in verification.details:
        note(f"  {line}" if verification.status in _VERIFICATION else line)
    note("try it with:")
    name = checkpoint.directory.name
    prompt = "0 1 2" if tokenizer else "Once upon a time"
    write(command_line("generate", prompt, "--model", name, checkpoints=checkpoints))
