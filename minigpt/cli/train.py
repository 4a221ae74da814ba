"""`minigpt train`: one text file, one command."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.options import CheckpointsOption, names_of, settings_options
from minigpt.cli.train_job import Job, begin, fields_of, resumed_directory, take_up
from minigpt.config import GPTConfig, TrainConfig, preset_config
from minigpt.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.storage.run import Run

_CHOSEN = (
    "dropout",
    "n_layer",
    "n_head",
    "n_embd",
    "context_length",
    "batch_size",
    "learning_rate",
    "warmup_steps",
    "minutes",
    "patience",
    "eval_tokens",
)


@settings_options(
    (GPTConfig, ("n_layer", "n_head", "n_embd", "dropout")),
    (TrainConfig, names_of(TrainConfig)),
    chosen=_CHOSEN,
)
def train(
    given: dict[str, Any],
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="text files, folders or globs, or - for standard input", metavar="TEXT..."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="the run's name [the first text's]")] = None,
    preset: Annotated[
        str | None,
        typer.Option("--preset", help="nano, micro, mini, small, gpt2, gpt2-medium, gpt2-large or gpt2-xl [chosen]"),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="bytes, chars, bpe:N (N words, trained here) or gpt2 [chosen]")
    ] = None,
    base: Annotated[str | None, typer.Option("--from", help="fine-tune this model: a run's name or a folder")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run of that name")] = False,
    text_key: Annotated[
        str, typer.Option("--text-key", help="the field of a .jsonl line that holds the text")
    ] = "text",
    encoding_errors: Annotated[
        str, typer.Option("--encoding-errors", help="strict, or replace to go on over broken UTF-8")
    ] = "strict",
    validation_fraction: Annotated[
        float | None, typer.Option("--validation-fraction", help="share of the text held out [10 %, at most 2 MB]")
    ] = None,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Train a GPT on your text; everything you do not choose is chosen for you, and said.

    Examples:

    - `minigpt train corpus.txt`

    - `minigpt train books/ --preset mini --minutes 30 --name library`

    - `minigpt train letters.txt --from gpt2 --epochs 3`

    - `minigpt train corpus.txt --resume`
    """
    TrainConfig(**fields_of(TrainConfig, given))  # wrong values are said before anything heavy is loaded
    if preset is not None:
        preset_config(preset)
    reading = {
        "text_key": text_key,
        "encoding_errors": encoding_errors,
        "validation_fraction": validation_fraction,
    }
    fixed = {"preset": preset, "tokenizer": tokenizer, "from": base}

    from minigpt.cli.render import console

    out = console()
    directory = resumed_directory(name, sources, checkpoints) if resume else None
    if directory is not None:
        job = take_up(directory, sources, given, fixed, out)
    else:
        if not sources:
            raise ConfigError("there is no text to train on; give a text file: minigpt train corpus.txt")
        if resume:
            out.print("there is no such run yet, so it starts now", markup=False)
        job = begin(sources, name, given, fixed, reading, checkpoints, out)
    _run(job, out)


@dataclass
class _Stop:
    """The signal that asked the run to stop, if one has."""

    signal: int | None = None


@contextmanager
def _stop_on_signals(out: "Console") -> Iterator[_Stop]:
    """Notes the first Ctrl-C or SIGTERM instead of dying of it; the second is a KeyboardInterrupt."""
    stop = _Stop()

    def note(number: int, _: object) -> None:
        if stop.signal is not None:
            raise KeyboardInterrupt
        stop.signal = number
        out.print("finishing this step, then saving; once more stops at once", markup=False)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(job: Job, out: "Console") -> None:
    """Trains and draws; ends with the result, or with the state saved and the exit code of the signal."""
    from minigpt.cli.render import TrainingDisplay, console, summary
    from minigpt.training.events import Finished
    from minigpt.training.loop import steps_in, train

    events = train(job.model, job.corpus, job.config, job.run, resume=job.resume)
    total = steps_in(job.config, len(job.corpus.train))
    directory = job.run.directory
    finished: Finished | None = None
    display = TrainingDisplay(out, directory.name, total)
    with display, _stop_on_signals(out) as stop:
        for event in events:
            display.show(event)
            finished = event if isinstance(event, Finished) else None
            if stop.signal is not None and finished is None:
                events.close()  # type: ignore[attr-defined]  # saves
                break
    if finished is None:
        out.print(f"stopped at step {display.step:,} and saved in {directory}; go on with:", markup=False)
        print(f"minigpt train --resume --name {directory.name}", file=sys.stderr)
        raise typer.Exit(128 + (stop.signal or 0))
    result = console(stderr=False)
    result.print(summary(finished, str(directory)))
    _draw_curve(job.run, out)
    result.print(f'try: minigpt generate "…" --model {directory.name}', markup=False, style="bold")


def _draw_curve(run: "Run", out: "Console") -> None:
    from minigpt.analysis.curves import draw_losses

    path = run.directory / "loss.png"
    try:
        draw_losses(run.read_log(), path)
        out.print(f"loss curve: {path}", markup=False)
    except ModuleNotFoundError:
        out.print("no loss curve was drawn: that takes matplotlib (pip install 'minigpt[plot]')", markup=False)
