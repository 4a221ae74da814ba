"""A training job that is ready to run."""

from dataclasses import dataclass

from minigpt.autoplan.planned_settings import PlannedSettings
from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.model.gpt import GPT
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
