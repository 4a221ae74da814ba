"""When a run trains a teacher first, and how much of its budget that takes.

docs/experiments.md has the measurements.
"""

from dataclasses import dataclass

from minigpt.config import TrainConfig

TEACHER_SHARE = 0.35  # of a budget in minutes
_TEACHER_LENGTH = 0.5  # of a budget in steps or epochs, which is the length of the model's own training
# Passes over the text and tokens that 85 % of the minutes are expected to be enough for without a teacher: 12 are about
# 13 in the plan's table. With the decay of the embeddings, a teacher cost 1 % where a run made 10 passes and 3 % with
# 11, was even with 12, and gained 1 % with 15, 2 % with 16, 4 % with 19 and 3 % with 33.
_PASSES, _TOKENS = 12, 2_500_000
_MOST_GAIN, _MOST_PASSES = 0.03, 19  # of the bits per byte, and from how many such passes on
_LEAST_PARAMETERS = 0.25  # in the blocks, per byte of text: a smaller model, which memorizes less, was not measured


def teacher_settings(config: TrainConfig) -> TrainConfig:
    """The settings of the teacher of a run: another seed, a part of the length, no samples, and unsharded weights."""
    length: dict[str, float | int] = {}
    if config.minutes is not None:
        length["minutes"] = TEACHER_SHARE * config.minutes
    if config.steps is not None:
        length["steps"] = max(1, round(_TEACHER_LENGTH * config.steps))
    if config.epochs is not None:
        length["epochs"] = _TEACHER_LENGTH * config.epochs
    seed = (config.seed + 1) % 2**63
    return config.replace(distill="off", seed=seed, sample_every=0, sharding="off", **length)


def pays(config: TrainConfig, tokens: float, passes: float) -> bool:
    """Whether a teacher is expected to pay, if the budget without one is enough for so many tokens and passes.

    A length in steps or epochs is what the user wants the model to train for, so nothing is added to it.
    """
    others = {"lora": None, "freeze": 0, "sharding": "off"}  # of other edges, and without them
    lora, freeze, sharding = (getattr(config, name, default) for name, default in others.items())
    may = not lora and not freeze and sharding != "on"
    return may and config.minutes is not None and passes >= _PASSES and tokens >= _TOKENS


def relative_loss_with_teacher(passes: float, parameters_per_byte: float) -> float:
    """The expected bits per byte with a teacher, divided by those of the same time without one.

    `passes` over the text are what that time is enough for without a teacher; the parameters are those of the blocks.
    """
    if parameters_per_byte < _LEAST_PARAMETERS:
        return 1.0
    share = (passes - _PASSES) / (_MOST_PASSES - _PASSES)
    return 1 - _MOST_GAIN * min(max(share, 0.0), 1.0)


@dataclass(frozen=True)
class TeacherPlan:
    """What the teacher of a run takes: the seconds of its steps together, and of each."""

    training_seconds: float
    seconds_per_step: float

    @property
    def steps(self) -> float:
        return self.training_seconds / self.seconds_per_step
