"""Decides which settings of a run may change when it is resumed.

Never: the shape, the tokenizer, the model to fine-tune, its adapter, whether there is a teacher. With --allow-change,
recorded in training.json: the text, and how the model learns from it. Freely: the length, evaluation but eval_tokens,
saving, the machine but dtype. The kind of a setting follows from its heading in the help; exceptions are named here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minigpt.config import GPTConfig, ReadingConfig, TrainConfig
from minigpt.errors import ConfigError
from minigpt.run_options import RunOptions
from minigpt.storage.run_record import TEXT, Change, Resumable, RunRecord

_FREE_GROUPS = {"Length", "Evaluation and saving", "Machine"}
_NEVER = {"Model", "Fine-tuning"}
_NEVER_TOO = {"distill"}  # whatever their heading
_NOT_FREE = {"seed", "dtype", "dropout", "eval_tokens"}  # whatever their heading
_FREE_WITHOUT_DROPOUT = {"micro_batch_size"}  # the gradient is the same, but each micro-batch has its own dropout mask
_GROUPS = {
    name: field.metadata["group"]
    for settings in (GPTConfig, TrainConfig, ReadingConfig)
    for name, field in settings.__dataclass_fields__.items()
}


def is_free(option: str, *, dropout: float | None = None) -> bool:
    """Whether a resumed run may have any value of this option, if its `largest_dropout` is this (None: unknown)."""
    if option in _FREE_WITHOUT_DROPOUT:
        return dropout == 0
    return option not in _NOT_FREE and _GROUPS.get(option) in _FREE_GROUPS


def largest_dropout(model: GPTConfig, training: TrainConfig) -> float:
    """The larger dropout of a run: that of its model, or that of its adapter if it trains one."""
    return max(model.dropout, training.lora_dropout if training.lora else 0.0)


def changes_in(record: RunRecord, begun: Resumable, asked: Mapping[str, Any], name: str) -> list[Change]:
    """The options in `asked` that change the recorded run called `name`, except the free ones.

    A value that the run has, or that was asked for when it began, is no change. Their `step` is set later: which state
    the run continues from depends on the text.
    Raises: ConfigError for an option that can never change.
    """
    training = begun.training
    has: dict[str, Any] = {**begun.model.to_dict(), **training.to_dict(), **begun.reading.to_dict()}
    has |= {"preset": record.preset, "tokenizer": record.tokenizer, "from": record.base}
    has |= {"lora": bool(training.lora), "lora_embedding": bool(training.lora_embedding)}
    if training.batch_tokens is None:  # the batch is given either in sequences or in tokens
        has["batch_tokens"] = f"{training.batch_size} sequences"
    else:
        has["batch_size"] = f"{training.batch_tokens} tokens"
    before = has | begun.asked.to_dict()
    model = begun.model.replace(dropout=asked.get("dropout", begun.model.dropout))
    dropout = largest_dropout(model, training)
    changes = [
        Change(step=0, option=option, before=before[option], after=value)
        for option, value in asked.items()
        if not is_free(option, dropout=dropout)
        and value not in (has[option], before[option])
        and (option, value) != ("distill", "auto")  # which the plan of the run has decided
    ]
    for change in changes:
        is_never = change.option in _NEVER_TOO or _GROUPS.get(change.option, "Model") in _NEVER
        if change.option not in _NOT_FREE and is_never:
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
