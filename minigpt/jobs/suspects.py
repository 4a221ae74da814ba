"""Names the given settings that can be why a run diverged or learned nothing."""

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


def find_suspects(
    record: RunRecord, model: GPTConfig, config: TrainConfig, *, diverged: bool
) -> tuple[str, tuple[str, ...]]:
    """A sentence on the given settings that can be why a run diverged, or else why it learned nothing, and their names.

    Both are empty if there are none.
    """
    asked = {} if record.asked is None else record.asked.to_dict()
    rate, usual = config.learning_rate, usual_learning_rate(model, config, fine_tuning=record.base is not None)
    if rate > _TOO_HIGH * usual or (not diverged and rate < _TOO_LOW * usual):
        how = "high" if rate > usual else "low"
        return f"the learning rate is too {how}: {rate:g}; runs of this size use {usual:g}", ("learning_rate",)
    names = tuple(name for name in asked if name in _SETTINGS or (name, asked[name]) == ("dtype", "float16"))
    if not names:
        return "", ()
    settings = ", ".join(f"--{name.replace('_', '-')} {asked[name]}" for name in names)
    return f"{settings} may be why; omit {'it' if len(names) == 1 else 'them'}", names
