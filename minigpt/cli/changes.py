"""What a run may change when it is taken up again; it reads no files, and changes nothing itself.

| what                                            | on --resume                                              |
|-------------------------------------------------|----------------------------------------------------------|
| what the weights are: shape, tokenizer, --from  | never                                                    |
| what is learnt from them, and how               | with --allow-change, said and recorded in training.json  |
| length, evaluation, saving, machine but dtype   | freely                                                   |

A setting's kind follows from the heading that its help stands under; the exceptions are named here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigpt.config import GPTConfig, ReadingConfig, TrainConfig
from minigpt.errors import ConfigError
from minigpt.storage import run_record as recorded

_FREE_GROUPS = {"Length", "Evaluation and saving", "Machine"}
_ALTERING = {"seed", "dtype", "dropout"}  # whatever heading they stand under
_PORTIONS = {"micro_batch_size"}  # the same gradient, but each portion draws a dropout of its own
_GROUPS = {
    name: field.metadata["group"]
    for settings in (GPTConfig, TrainConfig, ReadingConfig)
    for name, field in settings.__dataclass_fields__.items()
}


@dataclass(frozen=True)
class Change:
    """One option whose value is another one than the run had."""

    option: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.option} changes from {_shown(self.before)} to {self.after}"

    def record(self, step: int) -> recorded.Change:
        """What training.json says of it: `step` is the one after which it holds."""
        return recorded.Change(step=step, option=self.option, before=self.before, after=self.after)


def is_free(option: str, *, dropout: float | None = None) -> bool:
    """Whether a resumed run may have any value of this option; one with that dropout, where it depends on it."""
    if option in _PORTIONS:
        return dropout == 0
    return option not in _ALTERING and _GROUPS.get(option) in _FREE_GROUPS


def changes_in(record: recorded.RunRecord, asked: Mapping[str, Any], name: str) -> list[Change]:
    """What a run's record and the options `asked` for now differ in, those that are free left aside; saying again what
    it has, or was asked for when it began, is no change.

    Raises: ConfigError for what can never change: what the weights of the run of that name are.
    """
    assert record.model
    assert record.training
    assert record.reading
    assert record.asked
    training = record.training
    has: dict[str, Any] = {**record.model.to_dict(), **training.to_dict(), **record.reading.to_dict()}
    has |= {"preset": record.preset, "tokenizer": record.tokenizer, "from": record.base}
    if training.batch_tokens is None:  # one of the two ways to say a batch is in use
        has["batch_tokens"] = f"{training.batch_size} sequences"
    else:
        has["batch_size"] = f"{training.batch_tokens} tokens"
    before = has | record.asked.to_dict()
    dropout = asked.get("dropout", record.model.dropout)
    changes = [
        Change(option, before[option], value)
        for option, value in asked.items()
        if not is_free(option, dropout=dropout) and value not in (has[option], before[option])
    ]
    for change in changes:
        if change.option not in _ALTERING and _GROUPS.get(change.option, "Model") == "Model":
            mend = f" with --from {change.after}" if change.option == "from" else ""
            raise ConfigError(
                f"{change.option} ({change.after}) cannot change on --resume: {name} has {_shown(change.before)}, and "
                f"its weights are made for that; leave it out, or start a new run{mend}"
            )
    return changes


def refuse(changes: Sequence[Change], name: str) -> None:
    """Raises ConfigError, by name, where there is any change."""
    if changes:
        options = " and ".join(f"{change.option} ({change.after})" for change in changes)
        values = " and ".join(_shown(change.before) for change in changes)
        raise ConfigError(f"{options} cannot change on --resume without --allow-change: {name} has {values}")


def asked_after(asked: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
    """What a run that began with these options was asked for in the end."""
    after = dict(asked)
    for change in changes:
        if change.option in ("batch_size", "batch_tokens"):
            after.pop("batch_size", None)
            after.pop("batch_tokens", None)
        if change.option != "text":  # which is no option
            after[change.option] = change.after
    return after


def _shown(value: Any) -> str:
    return "the default" if value is None else str(value)
