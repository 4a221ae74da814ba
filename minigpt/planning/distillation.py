"""When a run trains a teacher first, and how much of its budget that takes.

docs/experiments.md has the measurements.
"""

from dataclasses import dataclass

from minigpt.config import TrainConfig

GAIN = 0.975  # of the bits per byte that the same time without a teacher reaches
TEACHER_SHARE = 0.35  # of a budget in minutes
_TEACHER_LENGTH = 0.5  # of a budget in steps or epochs, which is the length of the model's own training
# Passes over the text and tokens that 85 % of the minutes are expected to be enough for without a teacher: 12 are about
# 13 in the plan's table. With the decay of the embeddings, a teacher cost 1 % where a run made 10 passes and 3 % with
# 11, was even with 12, and gained 1 % with 15, 2 % with 16, 4 % with 19 and 3 % with 33.
_PASSES, _TOKENS = 12, 2_500_000


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
    may = not config.lora and not config.freeze and config.sharding != "on"
    return may and config.minutes is not None and passes >= _PASSES and tokens >= _TOKENS


@dataclass(frozen=True)
class TeacherPlan:
    """What the teacher of a run takes: the seconds of its steps together, and of each."""

    training_seconds: float
    seconds_per_step: float

    @property
    def steps(self) -> float:
        """The number of its optimizer steps."""
        return self.training_seconds / self.seconds_per_step
