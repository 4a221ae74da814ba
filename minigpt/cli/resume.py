"""A training job taken up again: which run, what it may change, and the state of affairs said; it trains nothing."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt.cli.changes import Change, asked_after, changes_in, is_free, refuse
from minigpt.cli.options import fields_of
from minigpt.cli.train_job import Job, Request, build_corpus, corpus_record, resolved
from minigpt.config import ReadingConfig, RunOptions, TrainConfig
from minigpt.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.data.corpus import Corpus
    from minigpt.model.gpt import GPT
    from minigpt.storage.run import Run
    from minigpt.storage.run_record import RunRecord
    from minigpt.tokenizer.tokenizer import Tokenizer


def resumed_directory(request: Request) -> Path | None:
    """The folder of the run to go on with; None where it has not begun yet and can begin now.

    Raises: ConfigError where there is no such run, nor a text to begin it with.
    """
    from minigpt.storage.checkpoint import TRAINING
    from minigpt.storage.run import newest_run, runs_in

    checkpoints = request.checkpoints
    if request.name is None and not request.sources:
        newest = newest_run(runs_in(checkpoints))
        if newest is None:
            raise ConfigError(f"there is no run in {checkpoints} to resume; begin one with minigpt train corpus.txt")
        return newest
    directory = (None if request.name else _begun_alike(request)) or checkpoints / request.run_name
    if (directory / TRAINING).exists():
        return directory
    if request.sources:
        return None
    names = ", ".join(run.name for run in runs_in(checkpoints))
    there = f"there are: {names}" if names else "there is none at all"
    raise ConfigError(f"there is no run {request.run_name!r} in {checkpoints}; {there}")


def _begun_alike(request: Request) -> Path | None:
    """The newest of the runs of these texts that were begun with these options and this budget, else with these
    options, else at all; each run of a text has the next number in its name. None where the texts have none or moved.
    """
    from minigpt.storage.run import newest_run, read_record, runs_in

    length = {key: value for key, value in request.given.items() if key in ("steps", "epochs", "minutes")}
    of_texts, alike, same = [], [], []
    for folder in runs_in(request.checkpoints):
        if re.fullmatch(re.escape(request.run_name) + r"(-\d+)?", folder.name):
            try:
                record = read_record(folder)
            except CheckpointError:  # said where it is this one that is wanted
                continue
            if record.sources == resolved(request.sources):
                of_texts.append(folder)
                asked = record.asked.to_dict() if record.asked else {}
                if request.asked.items() <= asked.items():
                    alike.append(folder)
                    if record.training and length.items() <= record.training.to_dict().items():
                        same.append(folder)
    return newest_run(same or alike or of_texts)


def take_up(request: Request, directory: Path, out: "Console") -> Job:
    """A run that stands: its settings with the flags laid over them, its own tokenizer, the same corpus.

    Raises: ConfigError for what cannot change, or not without `allow_change`; the run then stands as it was.
    """
    from minigpt.storage.run import Run

    run = Run.open(directory)
    run.lock()
    try:
        return _taken_up(run, request, out)
    except BaseException:
        run.unlock()
        raise


def weights_alone(run: "Run") -> int | None:
    """The step of the weights of a run that could never save a state, several times their size, beside them; None where
    there is one, or the weights are those that the run begins with."""
    from minigpt.storage.checkpoint import WEIGHTS
    from minigpt.storage.tensors import TensorFile

    if run.last_path.exists():
        return None
    with TensorFile(run.directory / WEIGHTS) as file:
        return int(file.metadata.get("step", 0)) or None


def _taken_up(run: "Run", request: Request, out: "Console") -> Job:
    from minigpt.model.gpt import GPT
    from minigpt.storage.checkpoint import write_config

    directory, record = run.directory, run.record
    if not (record.model and record.training and record.reading and record.asked and record.corpus and record.sources):
        raise ConfigError(
            f"{directory} was begun in Python, and its record does not tell how to go on; go on there by "
            f"train(..., resume=True), or start a new run from its weights with --from {directory.name}"
        )
    if (step := weights_alone(run)) is not None:
        raise ConfigError(
            f"{directory} holds its weights of step {step:,} but no state to resume; start a new run from those "
            f"weights with --from {directory.name}"
        )
    changes = changes_in(record, request.asked, str(directory))
    if not request.allow_change:
        refuse(changes, str(directory))
    config, reading, dropout = _settings_after(record, request, changes)
    model, tokenizer = _model_of(run)
    if config.context_length is not None and config.context_length > model.config.n_positions:
        raise ConfigError(
            f"context_length ({config.context_length}) must be at most the model's own ({model.config.n_positions})"
        )
    corpus = _recorded_corpus(run, request, reading, tokenizer, out)
    known = record.corpus
    if corpus.fingerprint != known.fingerprint:
        if not request.allow_change:
            raise ConfigError(
                f"the text is not the one that {directory} was trained on; give the same text to --resume, go on with "
                f"this one by --allow-change, or start a new run on it with --from {directory.name}"
            )
        changes.append(Change("text", known.fingerprint[:8], corpus.fingerprint[:8]))
    progress = run.last_progress()
    if progress is None:
        out.print(f"{directory} was stopped before its first save, so it starts at its beginning", markup=False)
    else:
        _refuse_finished(run, progress, config, len(corpus.train))
        out.print(f"going on with {directory} at step {progress['step']:,}", markup=False)
    for change in changes:
        fresh = ", whose own state starts afresh" if change.option == "optimizer" else ""
        out.print(f"{change}{fresh}", markup=False)
    step = progress["step"] if progress else 0
    run.update(
        training=config,
        model=record.model.replace(dropout=dropout),
        reading=reading,
        asked=RunOptions.of(asked_after(record.asked.to_dict(), changes)),
        sources=resolved(request.sources) or record.sources,
        corpus=corpus_record(corpus),
        changes=(*record.changes, *(change.record(step) for change in changes)),
        result=None,
    )
    if model.config.dropout != dropout:
        model = GPT.from_tensors(model.config.replace(dropout=dropout), model.state_dict())
        write_config(directory, model, tokenizer)
    return Job(model, corpus, config, run, resume=True)


def _model_of(run: "Run") -> tuple["GPT", "Tokenizer"]:
    """The run's model and tokenizer; the best weights may be damaged where there is a state, which has its own."""
    from minigpt.model.gpt import GPT
    from minigpt.storage.checkpoint import load_checkpoint, read_config
    from minigpt.tokenizer.tokenizer import Tokenizer

    try:
        checkpoint = load_checkpoint(run.directory, "cpu")
    except CheckpointError:
        if run.last_progress() is None:
            raise
        return GPT(read_config(run.directory)), Tokenizer.load(run.directory)
    return checkpoint.model, checkpoint.tokenizer


def _settings_after(
    record: "RunRecord", request: Request, changes: list[Change]
) -> tuple[TrainConfig, ReadingConfig, float]:
    """How a run goes on: what it has, with the changes and what is free to change laid over it."""
    assert record.model
    assert record.training
    assert record.reading
    altered = {change.option: change.after for change in changes}
    dropout = altered.get("dropout", record.model.dropout)
    new = {key: value for key, value in request.given.items() if is_free(key, dropout=dropout)} | altered
    training = record.training.to_dict()
    if {"steps", "epochs", "minutes"} & new.keys():
        training |= {"steps": None, "epochs": None, "minutes": None}
    if "batch_size" in new:
        training["batch_tokens"] = None
    config = TrainConfig(**(training | fields_of(TrainConfig, new)))
    reading = ReadingConfig(**(record.reading.to_dict() | fields_of(ReadingConfig, new)))
    return config, reading, dropout


def _refuse_finished(run: "Run", progress: dict[str, Any], config: TrainConfig, n_tokens: int) -> None:
    """Raises ConfigError for a run that has come to its end, saying how it can go on."""
    from minigpt.training.budget import Budget, planned_steps
    from minigpt.training.progress import Progress

    if run.record.result is None:
        return
    budget, stood = Budget(config, planned_steps(config, n_tokens)), Progress.from_dict(progress)
    before = run.before_cooldown_progress()
    if (
        before is not None
        and stood.budget.cooldown_step is not None
        and budget.cooled_down_too_early(Progress.from_dict(before), stood)
    ):
        return
    if budget.is_spent(stood) and stood.budget.shortened_to is not None and config.patience:
        raise ConfigError(
            f"{run.directory} stopped early at step {stood.step}: validation no longer improved, so the rate came down "
            "there; go on with it by --patience 0"
        )
    if budget.is_spent(stood):
        raise ConfigError(
            f"{run.directory} is finished ({stood.step} steps, {stood.seconds / 60:.1f} minutes); go on with it by a "
            "longer --steps, --epochs or --minutes"
        )
    if budget.has_stopped_improving(stood):
        raise ConfigError(
            f"{run.directory} stopped early at step {stood.step}, after {stood.evaluation.without_improvement} "
            "evaluations without improvement; go on with it by --patience 0"
        )


def _recorded_corpus(
    run: "Run", request: Request, reading: ReadingConfig, tokenizer: "Tokenizer", out: "Console"
) -> "Corpus":
    """The corpus that the run goes on with: the text given, else that it began with or, where that came through a pipe,
    the tokens in the cache.

    Raises: ConfigError where a text from a pipe would have to be read again.
    """
    from minigpt.data.corpus import Corpus

    if request.sources or "-" not in run.record.sources:
        return build_corpus(request.sources or list(run.record.sources), tokenizer, reading, out)
    if reading != run.record.reading:
        raise ConfigError(f"{run.directory} read its text from a pipe; give it again to read it otherwise")
    assert run.record.corpus
    assert run.record.corpus.path
    return Corpus.load(run.record.corpus.path)
