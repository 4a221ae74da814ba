"""The events of a training job in addition to those of training: its current activity, its plan, its run, its speed."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.training import events
from minigpt.units import count, duration

if TYPE_CHECKING:
    from minigpt.runs.plan import Plan
    from minigpt.storage.run_record import BaselineRecord


@dataclass(frozen=True)
class ExpectedRange:
    """The range in which the bits per byte of four of five runs end."""

    low: float
    high: float

    def times(self, factor: float) -> "ExpectedRange":
        """The range of runs that end at `factor` times the bits per byte."""
        return ExpectedRange(factor * self.low, factor * self.high)

    def __str__(self) -> str:
        return f"{self.low:.2f}–{self.high:.2f}"


@dataclass(frozen=True)
class Activity:
    """A slow part of the preparation begins, and the previous one has ended. With an empty text, none begins.

    `in_bytes` says that the progress callback is called with the bytes done and their total.
    """

    text: str
    in_bytes: bool = False


@dataclass(frozen=True)
class Planned:
    """The plan of a new run."""

    plan: "Plan"


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
    baselines: "tuple[BaselineRecord, ...]"
    scored_text: str = ""
    is_teacher: bool = False


@dataclass(frozen=True)
class TeacherTrained:
    """The teacher of a distilled run has ended, and the model that learns from it begins.

    `finished` has the teacher's figures.
    """

    finished: events.Finished

    @property
    def text(self) -> str:
        figures = f"{count(self.finished.step, 'step')} in {duration(self.finished.seconds)}"
        if self.finished.bits_per_byte is not None:
            tokens = count(self.finished.validation_tokens, "held-out token")
            figures += f", {self.finished.bits_per_byte:.4f} bits per byte on {tokens}"
        return f"the teacher is trained ({figures}); now the model learns from it and from the text"


@dataclass(frozen=True)
class SpeedChange:
    """A new run trains much slower or faster than its plan measured. Happens at most once.

    `tokens_per_second` is the speed of the last steps, `measured` that of the plan; `others_compute` says that other
    programs have used the processors meanwhile. At the new speed the run will take `steps` steps, `seconds_left` are
    left for training, and `expected` are the bits per byte at the end, None where nothing can be said.
    """

    step: int
    tokens_per_second: float
    measured: float
    others_compute: bool
    steps: int
    seconds_left: float
    expected: ExpectedRange | None

    @property
    def text(self) -> str:
        change = "training is faster than measured"
        if self.tokens_per_second < self.measured:
            change = "this machine is doing other things" if self.others_compute else "training is slower than measured"
        now = f"now expected: {count(self.steps, 'step')}, {duration(self.seconds_left)} left"
        if self.expected is not None:
            now += f", {self.expected} bits per byte"
        return f"{change}: {self.tokens_per_second:,.0f} tokens/s where {self.measured:,.0f} were measured; {now}"


TrainingEvent = Started | TeacherTrained | SpeedChange | events.Event
Event = TrainingEvent | Activity | Planned
