"""`minigpt train`: trains a model on a text."""

import signal
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.options import CheckpointsOption, common_option, complete_from, names_of, run_option, settings_options
from minigpt.cli.render.terminal import note, write
from minigpt.cli.signals import exiting_on_stops, ignoring_sigusr1, signals_as_requests
from minigpt.config import PRESETS, GPTConfig, ReadingConfig, TrainConfig
from minigpt.edges import provided
from minigpt.errors import ConfigError, RunFinishedError
from minigpt.run_options import Request, RunOptions
from minigpt.runs.sink_settings import sink_settings

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.runs.job import Job
    from minigpt.training.world import World


@settings_options(
    (GPTConfig, ("n_layer", "n_head", "n_embd", "dropout")),
    (TrainConfig, names_of(TrainConfig)),
    (ReadingConfig, names_of(ReadingConfig)),
    sinks=sink_settings(),
)
def train(
    given: dict[str, Any],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="text files, folders or globs, files of tokens (.bin, .ds), or - for standard input", metavar="TEXT"
        ),
    ] = None,
    name: Annotated[str | None, run_option(help="name of the run [default: from the first text]")] = None,
    preset: Annotated[
        str | None,
        common_option(
            help=f"shape of the model: {', '.join(PRESETS)} [default: chosen]", autocompletion=complete_from(*PRESETS)
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        common_option(
            help="bytes, chars, bpe:N (N tokens, trained here) or gpt2 [default: chosen]",
            autocompletion=complete_from("bytes", "chars", "bpe:", "gpt2"),
        ),
    ] = None,
    base: Annotated[
        str | None, run_option("--from", help="model to fine-tune: a run's name, or a model's file or folder")
    ] = None,
    resume: Annotated[
        bool, common_option("--resume", help="continue the run of that name, else the newest of that text, else of all")
    ] = False,
    allow_change: Annotated[
        bool,
        typer.Option("--allow-change", help="let --resume change the learning rate, the batch, the seed or the text"),
    ] = False,
    plan: Annotated[bool, common_option("--plan", help="measure, print the plan, and stop")] = False,
    prepare_only: Annotated[
        bool, typer.Option("--prepare", help="tokenize the text into the cache, on all cores, and stop")
    ] = False,
    *,
    sinks: dict[str, Any],
    checkpoints: CheckpointsOption = Path("checkpoints"),
) -> None:
    """Train a GPT on your text. Settings that you do not give are chosen for your text and machine, and printed.

    Examples:

    - `minigpt train corpus.txt`
    - `minigpt train books/ --preset mini --minutes 30 --name library`
    - `minigpt train letters.txt --from gpt2 --epochs 3`
    - `minigpt train corpus.txt --watch`
    - `minigpt train corpus.txt --resume`
    """
    request = Request(  # before anything slow is imported
        sources=tuple(sources or ()),
        name=name,
        checkpoints=checkpoints,
        options=RunOptions.of({**given, "preset": preset, "tokenizer": tokenizer, "from": base}),
        allow_change=allow_change,
    )
    sink_settings()(**sinks)  # raises for what cannot be combined or is not installed
    if prepare_only:
        _prepare(request, alone=not (plan or resume))
    elif plan:
        _plan(request, resume=resume)
    else:
        _train(request, sinks, resume=resume)


def _prepare(request: Request, *, alone: bool) -> None:
    if not request.sources:
        raise ConfigError("there is no text to prepare; give a text file: minigpt train corpus.txt --prepare")
    if not alone:
        raise ConfigError("--prepare cannot be combined with --plan and --resume; give one of the three")
    from minigpt.cli.render.console import console
    from minigpt.cli.render.preparation import PreparationDisplay
    from minigpt.runs.reading import read_corpus
    from minigpt.units import size

    options = request.options
    if options.base is not None:
        raise ConfigError("--prepare cannot be combined with --from; --tokenizer names the tokenizer")
    with exiting_on_stops(), PreparationDisplay(console()) as display:
        corpus = display.follow(read_corpus(request.sources, options.tokenizer, options.reading, display.progress))
    write(f"{size(corpus.train_bytes)} of text, {len(corpus.train):,} tokens of {corpus.tokenizer.name}")
    if corpus.has_text:
        note(f"the tokens are in {corpus.path}")
    else:
        note("these are tokens already, which training reads where they are: there is nothing to prepare")


def _plan(request: Request, *, resume: bool) -> None:
    if not request.sources:
        raise ConfigError("there is no text to plan for; give a text file: minigpt train corpus.txt --plan")
    if resume:
        raise ConfigError(
            "--plan cannot be combined with --resume: a resumed run keeps its plan; omit --resume for a new plan, or "
            "--plan to continue"
        )
    request.options.training.check_devices()
    processes = request.options.training.n_processes or 1
    from minigpt.cli.render.console import console
    from minigpt.cli.render.preparation import PreparationDisplay
    from minigpt.runs.start_run import plan_run
    from minigpt.threads import respect_cpu_quota, sharing_cores

    respect_cpu_quota()
    planning = PreparationDisplay(console(), plan_to=console(stderr=False))
    with exiting_on_stops(), sharing_cores(processes), planning as display:
        display.follow(plan_run(request, processes, processes, display.progress))


def _train(request: Request, sinks: dict[str, Any], *, resume: bool) -> None:
    """Trains and draws; ends with the result, or with the state saved and the exit code of the signal."""
    with ignoring_sigusr1(), _joined_world(request, resume=resume) as world:
        from minigpt.cli.render.console import console
        from minigpt.cli.render.run_display import RunDisplay
        from minigpt.cli.train_end import print_how_to_resume, print_next_steps
        from minigpt.runs.job import run_job, sinks_of
        from minigpt.training.clock import Control
        from minigpt.training.events import Notice

        out, control = console(), Control()
        with exiting_on_stops() if world.size == 1 else nullcontext():
            job = _prepared_job(request, out, world, resume=resume)
            world.share(job)
            if job is None:
                return
            display = RunDisplay(job, out, world.size)
            with (
                signals_as_requests(control, display.stop) as signals,
                closing(run_job(job, [*sinks_of(job, **sinks), display], control=control, world=world)) as events,
            ):
                for event in events:
                    if display.finished is not None and isinstance(event, Notice):
                        note(event.text)
            if display.finished is None:
                print_how_to_resume(job, request.checkpoints)
                # Without a signal, another process was asked to stop.
                raise typer.Exit(128 + (signals[0] if signals else signal.SIGTERM))
            print_next_steps(job, request.checkpoints, display.annotations)


def _joined_world(request: Request, *, resume: bool) -> "AbstractContextManager[World]":
    """The processes that train together: those that an edge starts and joins, else this one."""
    if joins := provided("world"):
        return joins[0](request, resume=resume)
    from minigpt.threads import respect_cpu_quota
    from minigpt.training.world import World

    respect_cpu_quota()
    return nullcontext(World())


def _prepared_job(request: Request, out: "Console", world: "World", *, resume: bool) -> "Job | None":
    """The job, ready to train; None if the run to resume is finished."""
    from minigpt.cli.render.preparation import PreparationDisplay
    from minigpt.runs.start_run import prepare

    try:
        with PreparationDisplay(out) as display:
            return display.follow(prepare(request, resume=resume, world=world, progress=display.progress))
    except RunFinishedError as finished:  # success, so that `until minigpt train --resume; do :; done` ends
        note(str(finished))
        return None
