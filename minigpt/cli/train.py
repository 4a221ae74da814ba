"""`minigpt train`: one text file, one command."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.launch import check_count, follow, lead, world_of
from minigpt.cli.loggers import check_loggers, open_loggers
from minigpt.cli.options import CheckpointsOption, command_line, fields_of, names_of, settings_options
from minigpt.cli.report import REPORT
from minigpt.cli.resume import resumed_directory, take_up
from minigpt.cli.signals import heeding_signals, ignoring_saves
from minigpt.cli.train_job import Job, Request, begin, draw_up
from minigpt.config import PRESETS, GPTConfig, ReadingConfig, TrainConfig
from minigpt.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.cli.render.training_display import TrainingDisplay
    from minigpt.storage.run import Run
    from minigpt.training.distributed import World

_CHOSEN = (
    "dropout",
    "token_noise",
    "bpe_dropout",
    "n_layer",
    "n_head",
    "n_embd",
    "context_length",
    "batch_size",
    "learning_rate",
    "optimizer",
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
    base: Annotated[
        str | None,
        typer.Option("--from", help="fine-tune this model: a run's name, or the path of a model of any format"),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="go on with the run of that name, else the newest of that text, else of all"),
    ] = False,
    allow_change: Annotated[
        bool, typer.Option("--allow-change", help="let --resume go on with another rate, batch, seed or text")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="measure, print the plan, and stop")] = False,
    log: Annotated[
        list[str] | None, typer.Option("--log", help="tensorboard or wandb: write the figures there too")
    ] = None,
    no_report: Annotated[
        bool, typer.Option("--no-report", help=f"write no {REPORT} into the run's folder at the end")
    ] = False,
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
        allow_change=allow_change,
    )
    request.check()  # before anything heavy is loaded
    check_loggers(log or [])

    from minigpt.cli.render.console import console

    if plan:
        if not request.sources:
            raise ConfigError("there is no text to plan for; give a text file: minigpt train corpus.txt --plan")
        if resume:
            raise ConfigError(
                "plan and resume contradict one another: a run keeps the plan that it was begun with; leave out "
                "--resume for a new plan, or --plan to go on"
            )
        processes = request.given.get("devices", 1)
        check_count(processes, request.given.get("device", "auto"))
        draw_up(request, console(), processes, processes)
        return
    with ignoring_saves(), world_of(request, resume=resume) as world:
        if not world.is_main:
            follow(world)
            return
        out = console()
        directory = resumed_directory(request) if resume else None
        if directory is not None:
            job = take_up(request, directory, out)
        elif not request.sources:
            raise ConfigError("there is no text to train on; give a text file: minigpt train corpus.txt")
        else:
            if resume:
                out.print("there is no such run yet, so it starts now", markup=False)
            job = begin(request, draw_up(request, out, world.size, world.local_size), out, world.size)
        lead(world, job)
        _run(job, checkpoints, out, world, log or [], no_report=no_report)


def _run(job: Job, checkpoints: Path, out: "Console", world: "World", loggers: list[str], *, no_report: bool) -> None:
    """Trains and draws; ends with the result, or with the state saved and the exit code of the signal."""
    from minigpt.cli.render.baselines import result_text
    from minigpt.cli.render.console import console
    from minigpt.cli.render.memorization import samples_text
    from minigpt.cli.render.run_summary import summary
    from minigpt.cli.render.training_display import TrainingDisplay
    from minigpt.device import resolve_device
    from minigpt.evaluation.recorded_baselines import recorded_baselines
    from minigpt.training.budget import planned_steps
    from minigpt.training.clock import Control
    from minigpt.training.events import Finished
    from minigpt.training.loop import train

    directory, control = job.run.directory, Control()
    baselines = recorded_baselines(job.run.record)
    finished: Finished | None = None
    unsaved: CheckpointError | None = None
    display = TrainingDisplay(
        out,
        directory.name,
        resolve_device(job.config.device),
        planned_steps(job.config, len(job.corpus.train)),
        job.config.sequences_per_step * (job.config.context_length or job.model.config.n_positions),
        baselines,
    )
    with open_loggers(loggers, job.run, out) as write, display, heeding_signals(control, display.stop) as signals:
        events = train(
            job.model,
            job.corpus,
            job.config,
            job.run,
            resume=job.resume,
            control=control,
            world=world,
            elapsed=job.spent,
        )
        display.read_log(job.run.read_log())  # of which what comes after the state it goes on from is gone by now
        try:
            for event in events:
                display.show(event)
                write(event)
                finished = event if isinstance(event, Finished) else None
        except CheckpointError as error:  # at an end that could not be saved
            if finished is None:
                raise
            unsaved = error
    if finished is None:
        saved = job.run.last_progress()
        what = (
            f"stopped at step {saved['step']:,} and saved in {directory}" if saved else "stopped; nothing was saved yet"
        )
        out.print(f"{what}; go on with:", markup=False)
        print(command_line("train", "--resume", "--name", directory.name, checkpoints=checkpoints), file=sys.stderr)
        raise typer.Exit(128 + (signals[0] if signals else signal.SIGTERM))  # another process was asked to
    result = console(stderr=False)
    log = list(job.run.read_log())
    beaten = result_text(log, baselines, finished)
    n_scored = len(job.corpus.validation) - 1  # all but the first
    speed = _speed(job, display, world.size)
    try:
        result.print(summary(finished, n_scored, speed, str(directory), beaten, samples_text(log)))
    finally:  # though nobody reads that
        _draw_curve(job.run, out)
        if not no_report:
            _report(job.run, out)
        if unsaved is not None:
            raise unsaved
    print(command_line("generate", "Once upon a time", "--model", directory.name, checkpoints=checkpoints))


def _speed(job: Job, display: "TrainingDisplay", processes: int) -> str:
    from minigpt.cli.render.run_summary import speed
    from minigpt.device import resolve_dtype
    from minigpt.planning.throughput import Peak, peak

    if not display.training_seconds:
        return "no step was taken"
    assert job.config.context_length is not None
    most = peak(display.device, resolve_dtype(job.config.dtype, display.device))
    if processes > 1 and display.device.type == "cuda":  # on a CPU they share what was measured
        most = Peak(processes * most.flops, f"{processes} times {most.source}")
    per_token = job.model.config.flops_per_token(job.config.context_length)
    return speed(display.steps * display.tokens_per_step / display.training_seconds, per_token, most)


def _report(run: "Run", out: "Console") -> None:
    """Writes the run's page; a run that is done and saved does not fail because a page about it cannot be made."""
    from minigpt.reports.run_report import write_report

    path = run.directory / REPORT
    try:
        write_report([run.directory], path)
        out.print(f"report: {path}", markup=False)
    except Exception as error:
        out.print(f"no report was made: {type(error).__name__}: {error}", markup=False)


def _draw_curve(run: "Run", out: "Console") -> None:
    from minigpt.evaluation.recorded_baselines import recorded_baselines
    from minigpt.reports.loss_curve import draw_loss_curve

    path = run.directory / "loss.png"
    try:
        draw_loss_curve(run.read_log(), path, {one.label: one.bits_per_byte for one in recorded_baselines(run.record)})
        out.print(f"loss curve: {path}", markup=False)
    except ModuleNotFoundError:
        out.print("no loss curve was drawn: that takes matplotlib (pip install 'minigpt[plot]')", markup=False)
    except Exception as error:  # of any kind: training is done and saved
        out.print(f"no loss curve was drawn: {type(error).__name__}: {error}", markup=False)
