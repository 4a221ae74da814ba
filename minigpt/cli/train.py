"""`minigpt train`: trains a model on a text."""

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minigpt.cli.launch import check_count, joined_world, share_job, train_with_main
from minigpt.cli.options import CheckpointsOption, command_line, names_of, settings_options
from minigpt.cli.render.terminal import note, write
from minigpt.cli.signals import ignoring_sigusr1, signals_as_requests
from minigpt.config import PRESETS, GPTConfig, ReadingConfig, TrainConfig
from minigpt.errors import CheckpointError, ConfigError
from minigpt.jobs.loggers import check_loggers, open_loggers
from minigpt.jobs.request import Request
from minigpt.reports import REPORT
from minigpt.run_options import RunOptions

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.cli.render.training_display import TrainingDisplay
    from minigpt.jobs.job import Job
    from minigpt.training.distributed import World
    from minigpt.training.events import Finished

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
    build=RunOptions.of,
)
def train(
    given: RunOptions,
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="text files, folders or globs, or - for standard input", metavar="TEXT..."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="name of the run [default: from the first text]")] = None,
    preset: Annotated[
        str | None,
        typer.Option("--preset", help=f"shape of the model: {', '.join(PRESETS)} [default: chosen]"),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", help="bytes, chars, bpe:N (N tokens, trained here) or gpt2 [default: chosen]"),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--from", help="model to fine-tune: the name of a run, or the path of a model of any format"),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="continue the run of that name, else the newest of that text, else of all"),
    ] = False,
    allow_change: Annotated[
        bool,
        typer.Option("--allow-change", help="let --resume change the learning rate, the batch, the seed or the text"),
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="measure, print the plan, and stop")] = False,
    log: Annotated[
        list[str] | None, typer.Option("--log", help="also log to tensorboard or wandb; may be given several times")
    ] = None,
    no_report: Annotated[
        bool, typer.Option("--no-report", help=f"do not write {REPORT} into the run's folder at the end")
    ] = False,
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Train a GPT on your text. Settings that you do not give are chosen for your text and machine, and printed.

    Examples:

    - `minigpt train corpus.txt`

    - `minigpt train books/ --preset mini --minutes 30 --name library`

    - `minigpt train letters.txt --from gpt2 --epochs 3`

    - `minigpt train corpus.txt --resume`
    """
    request = Request(  # before anything slow is imported
        sources=tuple(sources or ()),
        name=name,
        checkpoints=checkpoints,
        options=given.with_options(preset=preset, tokenizer=tokenizer, **{"from": base}),
        allow_change=allow_change,
    )
    check_loggers(log or [])
    if plan:
        _plan(request, resume=resume)
        return
    with ignoring_sigusr1(), joined_world(request, resume=resume) as world:
        if not world.is_main:
            train_with_main(world)
            return
        from minigpt.cli.render.console import console
        from minigpt.cli.render.preparation import PreparationDisplay
        from minigpt.jobs.stages import prepare

        out = console()
        with PreparationDisplay(out) as display:
            job = display.follow(
                prepare(
                    request,
                    resume=resume,
                    processes=world.size,
                    local_processes=world.local_size,
                    progress=display.progress,
                )
            )
        share_job(world, job)
        _train(job, checkpoints, out, world, log or [], report=not no_report)


def _plan(request: Request, *, resume: bool) -> None:
    if not request.sources:
        raise ConfigError("there is no text to plan for; give a text file: minigpt train corpus.txt --plan")
    if resume:
        raise ConfigError(
            "--plan cannot be combined with --resume: a resumed run keeps its plan; omit --resume for a new plan, or "
            "--plan to continue"
        )
    processes = request.options.training.devices or 1
    check_count(processes, request.options.training.device)
    from minigpt.cli.render.console import console
    from minigpt.cli.render.preparation import PreparationDisplay
    from minigpt.jobs.stages import plan_run

    with PreparationDisplay(console()) as display:
        display.follow(plan_run(request, processes, processes, display.progress))


def _train(job: "Job", checkpoints: Path, out: "Console", world: "World", loggers: list[str], *, report: bool) -> None:
    """Trains and draws; ends with the result, or with the state saved and the exit code of the signal."""
    from minigpt.cli.render.training_display import TrainingDisplay
    from minigpt.jobs import stages
    from minigpt.jobs.events import SpeedChange, Started
    from minigpt.training.clock import Control
    from minigpt.training.events import Finished

    control, finished = Control(), None
    unsaved: CheckpointError | None = None
    display: TrainingDisplay | None = None
    with ExitStack() as stack:
        signals = stack.enter_context(signals_as_requests(control, lambda: display.stop() if display else None))
        log_event = stack.enter_context(open_loggers(loggers, job.run, note))
        try:
            for event in stages.train(job, control=control, world=world):
                if isinstance(event, Started):
                    display = stack.enter_context(TrainingDisplay.of(event, out))
                    display.read_log(job.run.read_log())  # without the lines that the resumed run writes again
                    continue
                assert display is not None
                display.show(event)
                if not isinstance(event, SpeedChange):
                    log_event(event)
                finished = event if isinstance(event, Finished) else None
        except CheckpointError as error:  # the end could not be saved
            if finished is None:
                raise
            unsaved = error
    assert display is not None
    if finished is None:
        _print_how_to_resume(job, checkpoints)
        raise typer.Exit(128 + (signals[0] if signals else signal.SIGTERM))  # another process was asked to stop
    try:
        _print_result(job, finished, display, world.size)
    finally:  # even if standard output is closed
        for text in stages.write_pages(job.run, report=report):
            note(text)
        if unsaved is not None:
            raise unsaved
    note("try it with:")
    write(command_line("generate", "Once upon a time", "--model", job.run.directory.name, checkpoints=checkpoints))


def _print_how_to_resume(job: "Job", checkpoints: Path) -> None:
    directory, state = job.run.directory, job.run.last_progress()
    saved = f"stopped at step {state['step']:,} and saved in {directory}" if state else "stopped before the first save"
    note(f"{saved}; continue with:")
    note(command_line("train", "--resume", "--name", directory.name, checkpoints=checkpoints))


def _print_result(job: "Job", finished: "Finished", display: "TrainingDisplay", processes: int) -> None:
    from minigpt.cli.render.baselines import result_text
    from minigpt.cli.render.console import console
    from minigpt.cli.render.memorization import samples_text
    from minigpt.cli.render.run_summary import summary

    log = list(job.run.read_log())
    baselines = result_text(log, display.baselines, finished)
    n_scored = len(job.corpus.validation) - 1  # all but the first
    speed = _speed(job, display, processes)
    console(stderr=False).print(
        summary(finished, n_scored, speed, str(job.run.directory), baselines, samples_text(log))
    )


def _speed(job: "Job", display: "TrainingDisplay", processes: int) -> str:
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
