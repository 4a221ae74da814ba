"""Decides which settings of a run may change when it is resumed.

Never: the shape, the tokenizer, the model to fine-tune, its adapter, whether there is a teacher. With --allow-change,
recorded in training.json: the text, and how the model learns from it. Freely: the length, evaluation but eval_tokens,
saving, the machine but dtype. The kind of a setting follows from its heading in the help, unless it has its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minigpt.config import GPTConfig, ReadingConfig, TrainConfig
from minigpt.errors import ConfigError
from minigpt.run_options import Request, RunOptions
from minigpt.storage.run_record import TEXT, Change, Resumable, RunRecord

_BY_HEADING = {
    **dict.fromkeys(("Length", "Evaluation and saving", "Machine"), "free"),
    **dict.fromkeys(("Model", "Fine-tuning"), "never"),
}
_FREE_WITHOUT_DROPOUT = "micro_batch_size"  # the gradient is the same, but each micro-batch has its own dropout mask
_FIELDS = {
    name: field.metadata
    for settings in (GPTConfig, TrainConfig, ReadingConfig)
    for name, field in settings.__dataclass_fields__.items()
}


def _kind(option: str) -> str:
    """Whether a resumed run may change this option: "free", "allowed" with --allow-change, or "never"."""
    if option not in _FIELDS:  # preset, tokenizer and from
        return "never"
    return _FIELDS[option]["on_resume"] or _BY_HEADING.get(_FIELDS[option]["group"], "allowed")


def _is_decided(option: str, value: object) -> bool:
    """Whether the plan of the run has decided what this value leaves open."""
    return value == "auto" and option in _FIELDS and _kind(option) == "never"


def is_free(option: str, *, dropout: float | None = None) -> bool:
    """Whether a resumed run may have any value of this option, if its largest dropout is this (None: unknown)."""
    if option == _FREE_WITHOUT_DROPOUT:
        return dropout == 0
    return _kind(option) == "free"


def asked_by(request: Request) -> dict[str, Any]:
    """The options that a resumed run is compared with, by name."""
    return {name: value for name, value in request.options.to_dict().items() if not is_free(name)}


def changes_in(record: RunRecord, begun: Resumable, asked: Mapping[str, Any], name: str) -> list[Change]:
    """The options in `asked` that change the recorded run called `name`, except the free ones.

    A value that the run has, or that was asked for when it began, is no change. Their `step` is set later: which state
    the run continues from depends on the text.
    Raises: ConfigError for an option that can never change.
    """
    training = begun.training
    has: dict[str, Any] = {**begun.model.to_dict(), **training.decided(), **begun.reading.to_dict()}
    has |= {"preset": record.preset, "tokenizer": record.tokenizer, "from": record.base}
    if training.batch_tokens is None:  # the batch is given either in sequences or in tokens
        has["batch_tokens"] = f"{training.batch_size} sequences"
    else:
        has["batch_size"] = f"{training.batch_tokens} tokens"
    before = has | begun.asked.to_dict()
    model = begun.model.replace(dropout=asked.get("dropout", begun.model.dropout))
    dropout = training.largest_dropout(model)
    changes = [
        Change(step=0, option=option, before=before[option], after=value)
        for option, value in asked.items()
        if not is_free(option, dropout=dropout)
        and value not in (has[option], before[option])
        and not _is_decided(option, value)
    ]
    for change in changes:
        if _kind(change.option) == "never":
            instead = f" with --from {change.after}" if change.option == "from" else ""
            raise ConfigError(
                f"{change.option} ({change.after}) cannot change on --resume: {name} has {_shown(change.before)}, and "
                f"its weights depend on it; omit the option, or start a new run{instead}"
            )
    return changes


def refuse(changes: Sequence[Change], name: str) -> None:
    """Raises ConfigError, naming every option, if there is any change."""
    if changes:
        options = " and ".join(f"{change.option} ({change.after})" for change in changes)
        values = " and ".join(_shown(change.before) for change in changes)
        raise ConfigError(f"{options} cannot change on --resume without --allow-change: {name} has {values}")


def describe(change: Change) -> str:
    """The change as a sentence."""
    restart = ", whose state starts from zero" if change.option == "optimizer" else ""
    return f"{change.option} changes from {_shown(change.before)} to {change.after}{restart}"


def asked_after(asked: RunOptions, changes: Iterable[Change]) -> RunOptions:
    """The options that a run was asked for, with the changes."""
    after = asked.to_dict()
    for change in changes:
        if change.option in ("batch_size", "batch_tokens"):
            after.pop("batch_size", None)
            after.pop("batch_tokens", None)
        if change.option != TEXT:
            after[change.option] = change.after
    return RunOptions.of(after)


def _shown(value: object) -> str:
    return "the default" if value is None else str(value)
