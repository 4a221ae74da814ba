"""Resumes a run: applies the settings that may change, and reads its text again."""

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

from minigpt.config import GPTConfig, ReadingConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.data.token_writer import ByteProgress
from minigpt.device import resolve_device, resolve_dtype
from minigpt.errors import CheckpointError, ConfigError, DataError, MissingTextError, RunFinishedError, quoted
from minigpt.model.gpt import GPT
from minigpt.run_options import Request
from minigpt.runs.changes import asked_after, asked_by, changes_in, describe, is_free, refuse
from minigpt.runs.events import Event
from minigpt.runs.find_run import LENGTH, absolute_sources
from minigpt.runs.job import Job, stage_state
from minigpt.runs.reading import corpus_record, read_corpus
from minigpt.runs.saved_state import last_state, load_weights, resume_point, weights_without_state
from minigpt.shell import join
from minigpt.storage.adapters import adapter_format, is_adapter, load_trained_state
from minigpt.storage.run import Run
from minigpt.storage.run_record import TEXT, Change, Resumable
from minigpt.storage.runs import next_number
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.training.budget import Budget, planned_steps
from minigpt.training.events import Notice
from minigpt.training.prepare import prepare_model
from minigpt.training.progress import Progress


def resume_run(
    request: Request, directory: Path, processes: int = 1, progress: ByteProgress | None = None
) -> Generator[Event, None, Job]:
    """Makes the run in a folder ready to continue, with its own settings, tokenizer and text and the requested changes.

    Writes nothing: `train_model` does when it begins.
    Raises: ConfigError for what cannot change, or not without `allow_change`, and for a batch of fewer sequences than
    `processes`.
    """
    run = Run.open(directory)
    run.lock()
    try:
        return (yield from _resume(run, request, processes, progress))
    except BaseException:
        run.unlock()
        raise


def _resume(run: Run, request: Request, processes: int, progress: ByteProgress | None) -> Generator[Event, None, Job]:
    directory, record = run.directory, run.record
    begun = record.resumable()
    if begun is None:
        raise ConfigError(
            f"{directory} was begun by train() in Python, and its record does not say how to continue; resume it there "
            f"with train(..., resume=True), or start a new run from its weights with --from {directory.name}"
        )
    if record.unread:
        options = ", ".join(f"{name} ({quoted(value)})" for name, value in record.unread.items())
        raise ConfigError(
            f"{directory} was trained with {options}, which nothing installed has; install what adds it, or start a "
            f"new run from its weights with --from {directory.name}"
        )
    if (step := weights_without_state(run)) is not None:
        raise ConfigError(
            f"{directory} holds its weights of step {step:,} but no state to resume; start a new run from those "
            f"weights with --from {directory.name}"
        )
    changes = changes_in(record, begun, asked_by(request), str(directory))
    if not request.allow_change:
        refuse(changes, str(directory))
    shape, config, reading = _changed_settings(begun, request, changes)
    model, tokenizer = _load_adapted(run, shape, config) if is_adapter(directory) else load_weights(run)
    if config.context_length is not None and config.context_length > model.config.n_positions:
        raise ConfigError(
            f"context_length ({config.context_length}) must be at most the model's own ({model.config.n_positions})"
        )
    resolve_dtype(config.dtype, resolve_device(config.device))  # raises what the trainer would, before the run changes
    config.check_processes(processes)
    corpus = yield from _read_corpus(run, begun, request, reading, tokenizer, progress)
    corpus.check_loss_on(config.scored_role)
    config.check_tokenizer(corpus.tokenizer)
    before, after = begun.corpus.fingerprint, corpus.fingerprint
    if before != after:
        if not request.allow_change:
            raise ConfigError(
                f"the text is not the one that {directory} was trained on; give --resume the same text, continue with "
                f"this one by --allow-change, or start a new run on it with --from {directory.name}"
            )
        changes.append(Change(step=0, option=TEXT, before=before[:8], after=after[:8]))
    same = not changes and all(getattr(config, name) == getattr(begun.training, name) for name in LENGTH)
    budget = Budget(config, planned_steps(config, len(corpus.train)))
    state = resume_point(run, budget)
    step = state.step if state else 0
    changes = [replace(change, step=step) for change in changes]
    stage = stage_state(run) if state is None else None
    if state is not None:
        _refuse_finished(run, state, budget, changes)
    if any(getattr(config, name) != getattr(begun.training, name) for name in LENGTH):
        _refuse_spent(run, state or Progress.start(stage.seconds if stage else 0.0, 0.0), budget)
    if stage is not None:
        yield Notice(0, f"resuming {directory} {stage.place}")
    elif state is None:
        yield Notice(0, f"{directory} was stopped before its first save, so it starts from the beginning")
    else:
        yield Notice(step, f"resuming {directory} from step {step:,}")
    for change in changes:
        yield Notice(step, describe(change))
    run.revise(
        number=next_number(directory.parent),
        training=config,
        model=shape,
        reading=reading,
        asked=asked_after(begun.asked, changes),
        sources=absolute_sources(request) or begun.sources,
        corpus=corpus_record(corpus),
        chat_template=corpus.tokenizer.chat_template,
        changes=(*record.changes, *changes),
        expected=record.expected if same else None,
        result=None,
    )
    if model.config.dropout != shape.dropout:
        model = GPT.from_tensors(model.config.replace(dropout=shape.dropout), model.state_dict())
    if not is_adapter(directory):
        prepare_model(model, config)
    return Job(model=model, corpus=corpus, config=config, run=run, resume=True)


def _changed_settings(
    begun: Resumable, request: Request, changes: list[Change]
) -> tuple[GPTConfig, TrainConfig, ReadingConfig]:
    """The settings of the run with the changes and with the requested options that are free."""
    changed = {change.option: change.after for change in changes}
    shape = begun.model.replace(dropout=changed.get("dropout", begun.model.dropout))
    given = request.options.to_dict()
    training, reading = begun.training, begun.reading
    dropout = training.largest_dropout(shape)
    new = {name: value for name, value in given.items() if is_free(name, dropout=dropout)} | changed
    if LENGTH & new.keys():
        training = training.replace(steps=None, epochs=None, minutes=None)
    if "batch_size" in new:
        training = training.replace(batch_tokens=None)
    training = training.replace(**{name: new[name] for name in training.to_dict().keys() & new.keys()})
    reading = reading.replace(**{name: new[name] for name in reading.to_dict().keys() & new.keys()})
    return shape, training, reading


def _load_adapted(run: Run, shape: GPTConfig, config: TrainConfig) -> tuple[GPT, Tokenizer]:
    """The base model with the run's adapter, and the run's tokenizer."""
    adapter = adapter_format()
    model = GPT.from_tensors(shape, adapter.load_base(run.directory, run.record.adapter_base, config).state_dict())
    prepare_model(model, config)
    try:
        load_trained_state(model, adapter.read_weights(run.directory, model))
    except CheckpointError:
        if run.last_progress() is None:
            raise
    return model, Tokenizer.load(run.directory)


def _refuse_finished(run: Run, progress: Progress, budget: Budget, changes: list[Change]) -> None:
    """Raises RunFinishedError for a run that has ended and has nothing left to do; says how it can continue.

    `progress` is that of the state from which it would continue. It is an error if the user asked for `changes`, or if
    the run has diverged.
    """
    result = run.record.result
    if result is None or progress != last_state(run):  # from before its cool-down there is a lot to do
        return
    if budget.is_spent(progress) and result.reason == "diverged":
        how = f"diverged, with its state of step {progress.step}; start a new run with a lower --learning-rate"
    elif budget.is_spent(progress) and progress.budget.shortened_to is not None and budget.config.patience:
        how = (
            f"stopped early at step {progress.step}: the validation loss no longer improved, so the learning rate fell "
            "to its end there; continue with --patience 0"
        )
    elif budget.is_spent(progress):
        how = (
            f"is finished ({progress.step} steps, {progress.seconds / 60:.1f} minutes); continue with a longer "
            "--steps, --epochs or --minutes"
        )
    elif budget.has_stopped_improving(progress):
        how = (
            f"stopped early at step {progress.step}, after {progress.evaluation.without_improvement} evaluations "
            "without improvement; continue with --patience 0"
        )
    else:
        return
    kind = ConfigError if changes or result.reason == "diverged" else RunFinishedError
    raise kind(f"{run.directory} {how}")


def _refuse_spent(run: Run, progress: Progress, budget: Budget) -> None:
    """Raises ConfigError if a new length is used up already, so that the run would end without a cool-down."""
    if budget.is_spent(progress):
        config = budget.config
        name = next(name for name in ("minutes", "epochs", "steps") if getattr(config, name) is not None)
        raise ConfigError(
            f"{name} ({getattr(config, name)}) counts from the start of {run.directory}, which has taken "
            f"{progress.step} steps in {progress.seconds / 60:.1f} minutes; give a longer --{name}"
        )


def _read_corpus(
    run: Run, begun: Resumable, request: Request, reading: ReadingConfig, tokenizer: Tokenizer,
    progress: ByteProgress | None,
) -> Generator[Event, None, Corpus]:  # fmt: skip
    """The corpus to continue with: the requested text, or the run's own; from the cache if that came through a pipe."""
    if request.sources:
        return (yield from read_corpus(request.sources, tokenizer, reading, progress))
    if "-" not in begun.sources:
        try:
            return (yield from read_corpus(begun.sources, tokenizer, reading, progress))
        except MissingTextError as error:
            what, _, _ = str(error).partition(";")
            command = join("minigpt", "train", "NEW_PATH", "--resume", "--name", run.directory.name)
            raise MissingTextError(
                f"{what}, a text that {run.directory} was trained on; give the new path of its text: {command}"
            ) from error
    if reading != begun.reading:
        raise ConfigError(f"{run.directory} read its text from a pipe; give it again to read it with other settings")
    if begun.corpus.path is None:
        raise ConfigError(f"{run.directory} does not record the folder of its tokens; give the text again")
    try:
        return replace(Corpus.load(begun.corpus.path), tokenizer=tokenizer)
    except DataError as error:
        command = join("minigpt", "train", "-", "--resume", "--name", run.directory.name)
        raise DataError(
            f"{begun.corpus.path}, the tokens of a text that {run.directory} read from a pipe, is missing or damaged; "
            f"give the text again: {command} < TEXT"
        ) from error
