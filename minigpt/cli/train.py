"""`minigpt train`: trains a model on a text."""

import signal
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minigpt.cli.options import CheckpointsOption, complete_from, names_of, run_option, settings_options
from minigpt.cli.render.terminal import note, write
from minigpt.cli.signals import exiting_on_stops, ignoring_sigusr1, signals_as_requests
from minigpt.cli.train_end import discard_run, print_how_to_resume, print_next_steps, print_result
from minigpt.config import PRESETS, GPTConfig, ReadingConfig, TrainConfig
from minigpt.distributed.joined_world import joined_world, share_job, train_with_main, was_restarted
from minigpt.distributed.launch import check_count
from minigpt.errors import CheckpointError, ConfigError, RunFinishedError, TrainingError
from minigpt.reports import REPORT
from minigpt.run_options import RunOptions

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.runs.job import Job
    from minigpt.runs.request import Request
    from minigpt.training.world import World

_CHOSEN = (  # for the text or the machine, if they are not given
    "dropout", "token_noise", "bpe_dropout", "sampled_softmax", "spelling_features", "embedding_weight_decay",
    "n_layer", "n_head", "n_embd", "context_length", "batch_size", "learning_rate", "optimizer", "patience",
    "eval_tokens",
)  # fmt: skip


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
        typer.Argument(
            help="text files, folders or globs, files of tokens (.bin, .ds), or - for standard input", metavar="TEXT..."
        ),
    ] = None,
    name: Annotated[str | None, run_option(help="name of the run [default: from the first text]")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"shape of the model: {', '.join(PRESETS)} [default: chosen]", autocompletion=complete_from(*PRESETS)
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="bytes, chars, bpe:N (N tokens, trained here) or gpt2 [default: chosen]",
            autocompletion=complete_from("bytes", "chars", "bpe:", "gpt2"),
        ),
    ] = None,
    base: Annotated[
        str | None, run_option("--from", help="model to fine-tune: a run's name, or a model's file or folder")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="continue the run of that name, else the newest of that text, else of all")
    ] = False,
    allow_change: Annotated[
        bool,
        typer.Option("--allow-change", help="let --resume change the learning rate, the batch, the seed or the text"),
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="measure, print the plan, and stop")] = False,
    prepare_only: Annotated[
        bool, typer.Option("--prepare", help="tokenize the text into the cache, on all cores, and stop")
    ] = False,
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="also log to tensorboard or wandb; repeatable", autocompletion=complete_from("tensorboard", "wandb")
        ),
    ] = None,
    no_report: Annotated[
        bool, typer.Option("--no-report", help=f"do not write {REPORT} into the run's folder")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help=f"open {REPORT} in a browser; it reloads itself while the run trains")
    ] = False,
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
    from minigpt.loggers.loggers import check_loggers  # fast, but --help does not need them
    from minigpt.runs.request import Request

    request = Request(  # before anything slow is imported
        sources=tuple(sources or ()),
        name=name,
        checkpoints=checkpoints,
        options=RunOptions.of({**given, "preset": preset, "tokenizer": tokenizer, "from": base}),
        allow_change=allow_change,
    )
    check_loggers(log or [])
    if watch and no_report:
        raise ConfigError(f"--watch shows {REPORT}, so it cannot be combined with --no-report; omit one of them")
    if prepare_only:
        _prepare(request, alone=not (plan or resume))
        return
    if plan:
        _plan(request, resume=resume)
        return
    with ignoring_sigusr1(), joined_world(request, resume=resume) as world, ExitStack() as stack:
        if not world.is_main:
            train_with_main(world)
            return
        from minigpt.cli.render.console import console
        from minigpt.cli.render.preparation import PreparationDisplay
        from minigpt.runs.start_run import prepare

        if world.size == 1:
            stack.enter_context(exiting_on_stops())
        out = console()
        try:
            with PreparationDisplay(out) as display:
                job = display.follow(
                    prepare(
                        request,
                        resume=resume,
                        restarted=not resume and was_restarted(world),
                        processes=world.size,
                        local_processes=world.local_size,
                        progress=display.progress,
                    )
                )
        except RunFinishedError as finished:  # success, so that `until minigpt train --resume; do :; done` ends
            note(str(finished))
            share_job(world, None)
            return
        share_job(world, job)
        _train(job, checkpoints, out, world, log or [], watch=watch, report=not no_report)


def _prepare(request: "Request", *, alone: bool) -> None:
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


def _plan(request: "Request", *, resume: bool) -> None:
    if not request.sources:
        raise ConfigError("there is no text to plan for; give a text file: minigpt train corpus.txt --plan")
    if resume:
        raise ConfigError(
            "--plan cannot be combined with --resume: a resumed run keeps its plan; omit --resume for a new plan, or "
            "--plan to continue"
        )
    processes = request.options.training.devices or 1
    check_count(processes, request.options.training.device)
    from minigpt.autoplan.plan_run import plan_run
    from minigpt.cli.render.console import console
    from minigpt.cli.render.preparation import PreparationDisplay
    from minigpt.threads import respect_cpu_quota, sharing_cores

    respect_cpu_quota()
    planning = PreparationDisplay(console(), plan_to=console(stderr=False))
    with exiting_on_stops(), sharing_cores(processes), planning as display:
        display.follow(plan_run(request, processes, processes, display.progress))


def _train(
    job: "Job", checkpoints: Path, out: "Console", world: "World", loggers: list[str], *, watch: bool, report: bool
) -> None:
    """Trains and draws; ends with the result, or with the state saved and the exit code of the signal."""
    from minigpt.cli.render.training_display import TrainingDisplay
    from minigpt.loggers.loggers import open_loggers
    from minigpt.reports.run_pages import keep_report, write_pages
    from minigpt.runs.events import SpeedChange, Started, TeacherTrained
    from minigpt.runs.train_job import train_job
    from minigpt.storage.run import Run
    from minigpt.training.clock import Control
    from minigpt.training.events import Finished

    control, finished = Control(), None
    late_error: CheckpointError | TrainingError | None = None
    display: TrainingDisplay | None = None
    with ExitStack() as stack:
        shown = stack.enter_context(ExitStack())
        signals = stack.enter_context(signals_as_requests(control, lambda: display.stop() if display else None))
        logged = stack.enter_context(ExitStack())
        try:
            training = train_job(job, control=control, world=world)
            if report:
                training = keep_report(training, job.run, opened=_open_page if watch else None)
            stack.enter_context(closing(training))  # an error here must not keep the run locked
            for event in training:
                if isinstance(event, Started):
                    run = Run.open(event.directory) if event.is_teacher else job.run
                    title = job.run.directory.name + ("-teacher" if event.is_teacher else "")
                    logged.close()  # a distilled run starts twice
                    required = display is None  # nothing is trained yet
                    try:
                        log_event = logged.enter_context(open_loggers(loggers, run, note, title, required=required))
                    except ConfigError:
                        if not job.resume:
                            discard_run(job.run)
                        raise
                    shown.close()
                    display = shown.enter_context(TrainingDisplay(event, out))
                    done = event.step  # the resumed run writes the later lines again
                    if run.record.measured_since == done:
                        done -= 1  # and the evaluation at this step, which measured something else
                    earlier = (line for line in run.read_log() if line["step"] <= done)
                    display.read_log(run.record.comparable_evaluations(earlier))
                    continue
                assert display is not None
                display.show(event)
                if not isinstance(event, SpeedChange):
                    log_event(event.finished if isinstance(event, TeacherTrained) else event)
                finished = event if isinstance(event, Finished) else None
        except (CheckpointError, TrainingError) as error:  # the end could not be saved, or the run has diverged
            if finished is None:
                raise
            late_error = error
    assert display is not None
    if finished is None:
        print_how_to_resume(job, checkpoints)
        raise typer.Exit(128 + (signals[0] if signals else signal.SIGTERM))  # another process was asked to stop
    try:
        print_result(job, finished, display, world.size)
    finally:  # even if standard output is closed
        for text in write_pages(job.run, report=report):
            note(text)
        if late_error is not None:
            raise late_error
    print_next_steps(job, checkpoints)


def _open_page(path: Path) -> None:
    """Says where a page is, and opens it in a browser if this machine has one."""
    import webbrowser

    note(f"watch it: {path}")
    webbrowser.open(path.resolve().as_uri())
