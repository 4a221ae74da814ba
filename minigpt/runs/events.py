"""The events of a job in addition to those of training: its plan, its run, its stages."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from minigpt.runs.plan import Plan
from minigpt.storage.run_record import BaselineRecord
from minigpt.training import events


@dataclass(frozen=True)
class Planned:
    """The plan of a new run."""

    plan: Plan


@dataclass(frozen=True)
class Started:
    """The run is ready to train: its folder exists and is locked. Nothing of a resumed run has changed yet.

    `step` is that of the state which it continues from, 0 for a new run; `total_steps` is None if the budget is in
    minutes. `scored_text` says what the losses are measured on; it is empty for all of the text. A distilled run starts
    twice: first its teacher (`is_teacher`), in the folder `teacher` of the run, then the model.
    """

    directory: Path
    step: int
    device: str
    total_steps: int | None
    tokens_per_step: int
    baselines: tuple[BaselineRecord, ...]
    scored_text: str = ""
    is_teacher: bool = False


class Remark(ABC):
    """An event with a sentence for the user. Edges add subclasses."""

    @property
    @abstractmethod
    def text(self) -> str: ...


@dataclass(frozen=True)
class StageEnded(Remark):
    """A stage of a run has ended, such as the training of a teacher, with these figures; the next one begins."""

    finished: events.Finished


TrainingEvent = Started | Remark | events.Event
Event = TrainingEvent | events.Activity | Planned
