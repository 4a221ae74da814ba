"""A training job that is ready to run."""

from dataclasses import asdict, dataclass
from typing import Any

from minigpt.config import GPTConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.model.gpt import GPT
from minigpt.planning.planned_settings import PlannedSettings
from minigpt.storage.run import Run


@dataclass(frozen=True)
class Job:
    """Everything that `train_job()` takes. The run is locked.

    `elapsed` is how much of a budget in minutes the measurements took, in seconds. `planned` is the plan that a new run
    begins with; a resumed run may be on another machine, so it has none.
    """

    model: GPT
    corpus: Corpus
    config: TrainConfig
    run: Run
    resume: bool
    elapsed: float = 0.0
    planned: PlannedSettings | None = None

    @property
    def tokens_per_step(self) -> int:
        """Tokens in the batch of one optimizer step."""
        return self.config.sequences_per_step * (self.config.context_length or self.model.config.n_positions)


@dataclass(frozen=True)
class SharedJob:
    """The part of a job that the other processes need at first; the weights follow when training begins.

    For a distilled job, whether the teacher's run has begun and ended follows as well, when the main process knows.
    """

    model: GPTConfig
    corpus: str  # the folder of the tokens
    training: TrainConfig
    resume: bool

    @classmethod
    def of(cls, job: Job) -> "SharedJob":
        """The job as the main process sends it."""
        return cls(job.model.config, str(job.corpus.path.absolute()), job.config, job.resume)

    @classmethod
    def from_dict(cls, message: dict[str, Any]) -> "SharedJob":
        """The job as it was received; the inverse of `to_dict`."""
        model, training = GPTConfig(**message["model"]), TrainConfig(**message["training"])
        return cls(model, message["corpus"], training, message["resume"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)
