"""Names the given settings that can be why a run diverged or learned nothing."""

from dataclasses import dataclass

from minigpt.config import GPTConfig, TrainConfig
from minigpt.planning.defaults import usual_learning_rate
from minigpt.storage.run_record import RunRecord

_TOO_HIGH, _TOO_LOW = 3.0, 0.1  # times the usual learning rate
_GROUPS = ("Batch", "Optimization")
_HARMLESS = {"context_length", "micro_batch_size", "optimizer", "schedule", "loss_on", "distill", "distill_weight"}
_SETTINGS = {"dropout"} | {
    name
    for name, field in TrainConfig.__dataclass_fields__.items()
    if field.metadata["group"] in _GROUPS and name not in _HARMLESS
}


@dataclass(frozen=True)
class Suspects:
    """A sentence on the settings that can be the reason, and the names of those settings."""

    text: str
    names: tuple[str, ...]


def find_suspects(record: RunRecord, model: GPTConfig, config: TrainConfig, *, diverged: bool) -> Suspects | None:
    """The given settings that can be why a run diverged, or else why it learned nothing; None if there are none."""
    asked = {} if record.asked is None else record.asked.to_dict()
    rate, usual = config.learning_rate, usual_learning_rate(model, config, fine_tuning=record.base is not None)
    if rate > _TOO_HIGH * usual or (not diverged and rate < _TOO_LOW * usual):
        how = "high" if rate > usual else "low"
        text = f"the learning rate is too {how}: {rate:g}; runs of this size use {usual:g}"
        return Suspects(text, ("learning_rate",))
    names = tuple(name for name in asked if name in _SETTINGS or (name, asked[name]) == ("dtype", "float16"))
    if not names:
        return None
    settings = ", ".join(f"--{name.replace('_', '-')} {asked[name]}" for name in names)
    return Suspects(f"{settings} may be why; omit {'it' if len(names) == 1 else 'them'}", names)
