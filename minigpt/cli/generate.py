"""`minigpt generate`: continues a prompt with a model, streaming."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.options import CheckpointsOption, DeviceOption, JsonOption, names_of, settings_options
from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError, DataError

if TYPE_CHECKING:
    from minigpt.generation.decoding import Piece
    from minigpt.text.tokenizer import Tokenizer


@settings_options((SamplingConfig, names_of(SamplingConfig)))
def generate(
    given: dict[str, Any],
    prompt: Annotated[str | None, typer.Argument(help="the text to continue; none starts a new document")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="a run's name or a folder [newest]")] = None,
    prompt_file: Annotated[Path | None, typer.Option("--prompt-file", help="read the prompt from a file, or -")] = None,
    device: DeviceOption = "auto",
    dtype: Annotated[str, typer.Option("--dtype", help="of the weights: float32, bfloat16 or float16")] = "float32",
    as_json: JsonOption = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Continue a prompt with a model: the newest run, or --model.

    Examples:

    - `minigpt generate "Call me"`

    - `minigpt generate "Call me" --model moby_dick --temperature 0.7 --samples 3 --stop "."`

    - `cat letter.txt | minigpt generate --prompt-file - --json`
    """
    config = SamplingConfig(**given)  # before anything heavy is loaded
    text = _prompt(prompt, prompt_file)

    from minigpt.device import resolve_device, resolve_dtype
    from minigpt.generation.decoding import encode_prompt, generate_pieces
    from minigpt.storage.checkpoint import find_checkpoint, load_checkpoint

    target = resolve_device(device)
    directory = find_checkpoint(model, checkpoints)
    checkpoint = load_checkpoint(directory, str(target), dtype=resolve_dtype(dtype, target))
    n_prompt = len(encode_prompt(checkpoint.tokenizer, text))
    if n_prompt > checkpoint.model.config.n_positions:
        n_positions = checkpoint.model.config.n_positions
        _note(f"the prompt's {n_prompt} tokens are more than the context ({n_positions}); only its end is seen")
    if not as_json:
        _note(f"{directory} · {checkpoint.model.config.n_parameters:,} parameters · {target}")

    started = time.perf_counter()
    samples = [_Sample() for _ in range(config.samples)]
    stream = config.samples == 1 and not as_json
    if stream:
        print(text, end="", flush=True)
    first = None
    for piece in generate_pieces(checkpoint.model, checkpoint.tokenizer, text, config):
        first = first or time.perf_counter() - started
        samples[piece.row].add(piece)
        if stream:
            print(piece.text, end="", flush=True)
    seconds = time.perf_counter() - started
    rate = sum(len(sample.ids) for sample in samples) / seconds
    if as_json:
        for sample in samples:
            timing = {"seconds": seconds, "first_token_seconds": first, "tokens_per_second": rate}
            print(json.dumps(sample.record(text, checkpoint.tokenizer, str(directory), config.seed) | timing))
        return
    if stream:
        print()
    else:
        for number, sample in enumerate(samples):
            print(("" if number == 0 else "\n---\n") + text + sample.text)
    total = sum(len(sample.ids) for sample in samples)
    _note(f"{total} tokens in {seconds:.2f} s, {rate:.1f} tokens/s ({first:.2f} s to the first)")


class _Sample:
    """One continuation as it gathers."""

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.finish_reason = ""

    def add(self, piece: "Piece") -> None:
        self.text += piece.text
        self.ids += [] if piece.id is None else [piece.id]
        self.finish_reason = piece.finish_reason or ""

    def record(self, prompt: str, tokenizer: "Tokenizer", model: str, seed: int | None) -> dict[str, Any]:
        return {
            "prompt": prompt,
            "text": self.text,
            "ids": self.ids,
            "finish_reason": self.finish_reason,
            "model": model,
            "tokenizer": tokenizer.name,
            "seed": seed,
        }


def _prompt(prompt: str | None, file: Path | None) -> str:
    if prompt is not None and file is not None:
        raise ConfigError("a prompt and --prompt-file contradict one another; give one of them")
    if file is None:
        return prompt or ""
    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error.strerror}); give a text file, or - for standard input"
        ) from error
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text: byte {raw[error.start]:#04x} at offset {error.start}") from error


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
