"""`minigpt train`: one text file, one command."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.options import CheckpointsOption, command_line, fields_of, names_of, settings_options
from minigpt.cli.train_job import Job, Request, begin, resumed_directory, take_up
from minigpt.config import PRESETS, GPTConfig, ReadingConfig, TrainConfig
from minigpt.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.cli.render import TrainingDisplay
    from minigpt.storage.run import Run

_CHOSEN = (
    "dropout",
    "n_layer",
    "n_head",
    "n_embd",
    "context_length",
    "batch_size",
    "learning_rate",
    "minutes",
    "patience",
    "eval_tokens",
)


@settings_options(
    (GPTConfig, ("n_layer", "n_head", "n_embd", "dropout")),
    (TrainConfig, names_of(TrainConfig)),
    (ReadingConfig, names_of(ReadingConfig)),
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
        typer.Option("--preset", help=f"a model's shape: {', '.join(PRESETS)} [default: chosen]"),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", help="bytes, chars, bpe:N (N words, trained here) or gpt2 [default: chosen]"),
    ] = None,
    base: Annotated[str | None, typer.Option("--from", help="fine-tune this model: a run's name or a folder")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run of that name")] = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Train a GPT on your text; everything you do not choose is chosen for you, and said.

    Examples:

    - `minigpt train corpus.txt`

    - `minigpt train books/ --preset mini --minutes 30 --name library`

    - `minigpt train letters.txt --from gpt2 --epochs 3`

    - `minigpt train corpus.txt --resume`
    """
    request = Request(
        sources=sources or [],
        name=name,
        checkpoints=checkpoints,
        preset=preset,
        tokenizer=tokenizer,
        base=base,
        reading=fields_of(ReadingConfig, given),
        given={key: value for key, value in given.items() if key not in ReadingConfig.__dataclass_fields__},
    )
    request.check()  # before anything heavy is loaded

    from minigpt.cli.render import console

    out = console()
    directory = resumed_directory(request) if resume else None
    if directory is not None:
        job = take_up(request, directory, out)
    elif not request.sources:
        raise ConfigError("there is no text to train on; give a text file: minigpt train corpus.txt")
    else:
        if resume:
            out.print("there is no such run yet, so it starts now", markup=False)
        job = begin(request, out)
    _run(job, checkpoints, out)


@contextmanager
def _stop_on_signals(display: "TrainingDisplay") -> Iterator[list[int]]:
    """Notes the first Ctrl-C or SIGTERM in a list instead of dying of it; the second is a KeyboardInterrupt."""
    received: list[int] = []

    def note(number: int, _: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        display.stopping = True

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(job: Job, checkpoints: Path, out: "Console") -> None:
    """Trains and draws; ends with the result, or with the state saved and the exit code of the signal."""
    from minigpt.cli.render import TrainingDisplay, console, summary
    from minigpt.device import resolve_device
    from minigpt.training.events import Finished
    from minigpt.training.loop import train
    from minigpt.training.pace import steps_in

    directory = job.run.directory
    events = train(job.model, job.corpus, job.config, job.run, resume=job.resume)
    finished: Finished | None = None
    display = TrainingDisplay(
        out, directory.name, resolve_device(job.config.device), steps_in(job.config, len(job.corpus.train))
    )
    with display, _stop_on_signals(display) as signals:
        for event in events:
            display.show(event)
            finished = event if isinstance(event, Finished) else None
            if signals and finished is None:
                events.close()  # saves
                break
    if finished is None:
        out.print(f"stopped at step {display.step:,} and saved in {directory}; go on with:", markup=False)
        print(command_line("train", "--resume", "--name", directory.name, checkpoints=checkpoints), file=sys.stderr)
        raise typer.Exit(128 + signals[0])
    result = console(stderr=False)
    result.print(summary(finished, str(directory)))
    _draw_curve(job.run, out)
    print(command_line("generate", "Once upon a time", "--model", directory.name, checkpoints=checkpoints))


def _draw_curve(run: "Run", out: "Console") -> None:
    from minigpt.analysis.curves import draw_losses

    path = run.directory / "loss.png"
    try:
        draw_losses(run.read_log(), path)
        out.print(f"loss curve: {path}", markup=False)
    except ModuleNotFoundError:
        out.print("no loss curve was drawn: that takes matplotlib (pip install 'minigpt[plot]')", markup=False)
