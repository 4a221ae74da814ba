"""A training job, the stages that edges add to it, and `run_job()`, which trains it and gives its events to sinks."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.device import resolve_device
from minigpt.edges import provided
from minigpt.errors import CheckpointError, TrainingError
from minigpt.model.gpt import GPT
from minigpt.runs.events import Event, Started, TrainingEvent
from minigpt.runs.plan import Plan, planner
from minigpt.runs.saved_state import resume_point
from minigpt.runs.sink_settings import sink_settings
from minigpt.storage.checkpoint import CONFIG, GENERATION_CONFIG, config_files, read_config
from minigpt.storage.files import atomic_write
from minigpt.storage.run import Run
from minigpt.tokenizer.config_files import read_config as read_tokenizer_config
from minigpt.training import loop
from minigpt.training.budget import Budget, planned_steps
from minigpt.training.clock import Control
from minigpt.training.events import Finished, Notice
from minigpt.training.progress import Progress
from minigpt.training.spike_detection import RunDivergedError
from minigpt.training.world import World


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a process needs to train a job together with others. Only the main one has a `run`, which is locked.

    `elapsed` is how much of a budget in minutes is used, in seconds. `options` are given to `train()` as well.
    """

    model: GPT
    corpus: Corpus
    config: TrainConfig
    resume: bool
    run: Run | None = None
    elapsed: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Job(Share):
    """A job as the main process has it. A new run has the `plan` that it begins with; a resumed one has none.

    A resumed run may be on another machine, so that its plan would not be true.
    """

    run: Run
    plan: Plan | None = None

    @property
    def tokens_per_step(self) -> int:
        """Tokens in the batch of one optimizer step."""
        return self.config.sequences_per_step * (self.config.context_length or self.model.config.n_positions)


Events = Generator[TrainingEvent, None, None]
Train = Callable[[Share, Control, World], Events]
"""Trains the model of a job, and yields the events."""


@dataclass(frozen=True)
class StageState:
    """How far a stage of a stopped run has come.

    `place` is where the run continues, as in "resuming fox {place}", and `saved` what is saved of the stage, empty if
    it has ended. `seconds` are those that it took, if it has ended, and `folder` has its files.
    """

    place: str
    saved: str
    seconds: float
    folder: Path


class Stage:
    """Training around that of the model, such as that of a teacher before it. An edge provides one at "stages"."""

    def train(self, train: Train, job: Share, control: Control, world: World) -> Events:
        """Trains a job by calling `train`, which trains its model, and perhaps that of another job before."""
        return train(job, control, world)

    def state(self, run: Run) -> StageState | None:  # noqa: ARG002
        """How far it has come in the run; None if it has not begun or the run has no such stage."""
        return None


def stages() -> tuple[Stage, ...]:
    """The stages of the installed edges."""
    return tuple(build() for build in provided("stages"))


def stage_state(run: Run) -> StageState | None:
    """The state of the stage that has come furthest in a run, if there is one."""
    return next((state for stage in stages() if (state := stage.state(run)) is not None), None)


class Sink:
    """Receives the events of a job, such as a display, a logger or a page about the run.

    Training does not depend on it: its own errors are its own to handle.

    An edge provides a function of the job and of the `SinkSettings` at the seam "sinks", which returns a Sink or None.
    """

    def receive(self, event: Event) -> Iterable[Event]:  # noqa: ARG002
        """Takes the next event. Returns the events that it adds after it, which every sink receives too.

        Raises: MinigptError if it cannot begin, at the first `Started` only: nothing is trained yet.
        """
        return ()

    def close(self, finished: Finished | None) -> Iterable[str]:  # noqa: ARG002
        """Ends it, after training: `finished` is the last event, None if the run was left before. Returns notices."""
        return ()


def sinks_of(job: Job, **settings: Any) -> list[Sink]:
    """The sinks of the installed edges for a job with these settings, of which those that no sink has are ignored."""
    kind = sink_settings()
    known = kind(**{name: value for name, value in settings.items() if name in kind.__dataclass_fields__})
    return [sink for build in provided("sinks") if (sink := build(job, known)) is not None]


def run_job(
    job: Job, sinks: Sequence[Sink] = (), *, control: Control | None = None, world: World | None = None
) -> Generator[Event, None, None]:
    """Trains the job. Gives each event to the sinks, then yields it; `Finished` comes last, after what the sinks say.

    Closing it stops the training, saves, and ends the sinks.
    Raises: what `minigpt.train()` raises; what a sink raises that cannot begin. An error after `Finished`, such as that
    the end could not be saved or that standard output is closed, is raised when `Finished` is yielded.
    """
    finished: Finished | None = None
    late_error: BaseException | None = None
    notices: list[str] = []
    try:
        try:
            with closing(train_job(job, control or Control(), world or World())) as training:
                for trained in training:
                    events = deque[Event]([trained])
                    while events:
                        event = events.popleft()
                        finished = event if isinstance(event, Finished) else finished
                        for sink in sinks:
                            events.extend(sink.receive(event))
                        if not isinstance(event, Finished):
                            yield event
        finally:
            for sink in sinks:
                notices.extend(sink.close(finished))
    except RunDivergedError as error:
        late_error = RunDivergedError(error.observed, planner().suspects(job.run.record) or error.advice)
        if finished is None:
            raise late_error from error
    except (CheckpointError, TrainingError, OSError, KeyboardInterrupt) as error:
        if finished is None:
            raise
        late_error = error
    if finished is not None:
        yield from (Notice(finished.step, text) for text in notices)
        yield finished
    if late_error is not None:
        raise late_error


def train_job(job: Share, control: Control, world: World) -> Events:
    """Trains the stages of a job and its model; yields `Started` on the main process, then the events of `train()`.

    Every process calls it. Closing it stops the training and saves.
    """
    train: Train = train_model
    for stage in stages():
        train = partial(stage.train, train)
    return train(job, control, world)


def train_model(job: Share, control: Control, world: World) -> Events:
    """Trains the model of a job, without stages."""
    try:
        if isinstance(job, Job):
            yield from _start(job)
        training = loop.train(
            job.model, job.corpus, job.config, job.run,
            resume=job.resume, control=control, world=world, elapsed=job.elapsed, **job.options,
        )  # fmt: skip
        with closing(training):  # so that leaving here stops the training and saves
            yield from training
    finally:  # also if the caller leaves before the first event of training
        if job.run is not None:
            job.run.unlock()


def _start(job: Job) -> Iterator[Started]:
    """Says how the training of a run starts, then writes what has changed in a resumed one.

    If the caller leaves at that event, it stays as it was.
    """
    budget = Budget(job.config, planned_steps(job.config, len(job.corpus.train)))
    state = resume_point(job.run, budget) if job.resume else None
    yield Started(
        directory=job.run.directory,
        step=state.step if state else 0,
        device=str(resolve_device(job.config.device)),
        total_steps=budget.last_step(state or Progress()),
        tokens_per_step=job.tokens_per_step,
        baselines=planner().baselines(job.run.record),
        scored_text=job.config.scored_text,
    )
    if job.resume:
        write_changes(job)


def write_changes(job: Job) -> None:
    """Writes the changed settings of a resumed run."""
    run = job.run
    tokenizer, folder = job.corpus.tokenizer, run.directory
    changed = {
        CONFIG: read_config(folder).dropout != job.model.config.dropout,
        GENERATION_CONFIG: tuple(read_tokenizer_config(folder).suppressed_ids) != tokenizer.suppressed_ids,
    }
    for name in filter(changed.get, changed):
        atomic_write(folder / name, config_files(job.model, tokenizer)[name])
    run.update()
