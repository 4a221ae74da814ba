"""`run_job()`: trains a job and gives its events to the sinks; the same for the command line and for Python."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import partial

from minigpt.device import resolve_device
from minigpt.errors import CheckpointError, TrainingError
from minigpt.runs.events import Event, Started
from minigpt.runs.job import Events, Job, Share, Train, stages
from minigpt.runs.planner import planner
from minigpt.runs.resume import resume_point, write_changes
from minigpt.runs.sinks import Sink
from minigpt.training import loop
from minigpt.training.budget import Budget, planned_steps
from minigpt.training.clock import Control
from minigpt.training.events import Finished, Notice
from minigpt.training.progress import Progress
from minigpt.training.spike_detection import RunDivergedError
from minigpt.training.world import World


def run_job(
    job: Job, sinks: Sequence[Sink] = (), *, control: Control | None = None, world: World | None = None
) -> Generator[Event, None, None]:
    """Trains the job. Gives each event to the sinks, then yields it; the notices of the sinks' ends come last.

    Closing it stops the training, saves, and ends the sinks.
    Raises: what `minigpt.train()` raises; what a sink raises that cannot begin. An error after `Finished`, such as that
    the end could not be saved, is raised after the last notice.
    """
    finished: Finished | None = None
    late_error: CheckpointError | TrainingError | None = None
    notices: list[str] = []
    try:
        with closing(train_job(job, control or Control(), world or World())) as training:
            for trained in training:
                events = deque[Event]([trained])
                while events:
                    event = events.popleft()
                    for sink in sinks:
                        events.extend(sink.receive(event))
                    finished = event if isinstance(event, Finished) else finished
                    yield event
    except RunDivergedError as error:
        late_error = RunDivergedError(error.observed, planner().suspects(job.run.record) or error.advice)
        if finished is None:
            raise late_error from error
    except (CheckpointError, TrainingError) as error:
        if finished is None:
            raise
        late_error = error
    finally:
        for sink in sinks:
            notices.extend(sink.close(finished))
    if finished is not None:
        yield from (Notice(finished.step, text) for text in notices)
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
