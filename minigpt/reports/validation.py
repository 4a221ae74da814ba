"""Whether a run's record and log are what training writes, before a page is made of them; it mends nothing."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from minigpt.errors import CheckpointError

Check = Callable[[Any], bool]


def check_record(record: Mapping[str, Any], path: Path) -> None:
    """Raises CheckpointError for a record that lacks what is read of it, or has it of another kind."""
    for name, entries in _RECORD.items():
        part = record.get(name)
        if part is None and name not in _NEEDED:
            continue
        if part is None:
            raise CheckpointError(
                f"{path} has no {name!r}, which a page needs; a run that was begun in Python has what its record was "
                "given"
            )
        if not isinstance(part, dict):
            raise CheckpointError(f"{path} is damaged: its {name!r} is {part!r}, not an object; copy it again")
        _check(part, entries, f"{path} is damaged: in its {name!r},", "copy it again", needed=True)
    for entry in (record.get("baselines") or {"measured": []})["measured"]:
        if not isinstance(entry, dict):
            raise CheckpointError(f"{path} is damaged: a baseline is {entry!r}, not an object; copy it again")
        _check(entry, _BASELINE, f"{path} is damaged: in a baseline,", "copy it again", needed=True)


def check_log(log: Iterable[Any], path: Path) -> None:
    """Raises CheckpointError for the first line that is not one of a run's."""
    for number, line in enumerate(log, 1):
        where = f"{path}, line {number}:"
        if not isinstance(line, dict) or not _whole(line.get("step")):
            raise CheckpointError(f"{where} this is no line of a run's log, which has a step; remove it")
        _check(line, _LINE, where, "remove the line", needed=False)
        if line.get("surprise") and len(line["surprise"]) + 1 != len(line.get("passage") or ()):
            raise CheckpointError(f"{where} passage and surprise are not of one length; remove the line")


def _check(part: Mapping[str, Any], entries: Mapping[str, Check], where: str, mend: str, *, needed: bool) -> None:
    for name, holds in entries.items():
        value = part.get(name)
        if (value is None and not needed) or holds(value):
            continue
        raise CheckpointError(f"{where} {name} is {value!r}, which it cannot be; {mend}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _list_of(holds: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(holds, value))


def _span(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_whole, value))


_NEEDED = {"corpus"}
_RECORD: Mapping[str, Mapping[str, Check]] = {
    "corpus": {"fingerprint": _text, "train_tokens": _whole, "train_bytes": _whole},
    "result": {"step": _whole, "best_step": _whole, "reason": _text, "seconds": _number},
    "baselines": {"fingerprint": _text, "measured": _list_of(lambda _: True)},
    "reading": {},
    "model": {},
    "training": {},
    "environment": {},
}
_BASELINE: Mapping[str, Check] = {
    "name": _text, "bits_per_byte": _number, "train_bytes": _whole, "validation_bytes": _whole
}  # fmt: skip
_LINE: Mapping[str, Check] = {
    **dict.fromkeys(("loss", "learning_rate", "tokens_per_second", "validation_loss", "bits_per_byte"), _number),
    **dict.fromkeys(("prompt", "sample"), _text),
    **dict.fromkeys(("longest_copied_words", "copied_at_least"), _whole),
    "copied_share": _number,
    "copied_spans": _list_of(_span),
    "passage": _list_of(_whole),
    "surprise": _list_of(_number),
}
