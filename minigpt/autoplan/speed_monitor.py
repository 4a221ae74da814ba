"""Compares the speed of a run with the one that its plan measured, and says once what to expect if it differs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from minigpt.autoplan.expectation import ExpectedRange
from minigpt.autoplan.measured_plan import MeasuredPlan
from minigpt.autoplan.planned_settings import PlannedSettings
from minigpt.runs.events import Event, Remark, Started
from minigpt.runs.job import Job, Sink
from minigpt.runs.sink_settings import SinkSettings
from minigpt.shared_cores.load_monitor import TOLERANCE, OtherPrograms
from minigpt.training.events import Step
from minigpt.units import count, duration

_SLOWER, _FASTER = 0.75, 1.33  # of the measured speed: what changes the result visibly
_FRACTION = 0.02  # of the run's training in one stretch
_MIN_SECONDS, _MAX_SECONDS = 2.0, 20.0  # of a stretch
_STRETCHES = 3  # in a row that differ, so that a moment does not count
_WARMUP = 3  # steps


@dataclass(frozen=True)
class SpeedChange(Remark):
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


class SpeedMonitor:
    """Observes the steps of a run that has just been planned with these settings."""

    def __init__(self, settings: PlannedSettings, others: Callable[[], float] | None = None) -> None:
        self.settings, self._others = settings, others or OtherPrograms().cores
        training = settings.steps * settings.seconds_per_step
        self._length = min(_MAX_SECONDS, max(_MIN_SECONDS, _FRACTION * training))  # seconds
        self._warmup, self._is_done = _WARMUP, False
        self._steps, self._seconds = 0, 0.0  # of the stretch
        # The steps, seconds and cores used by others of the last stretches, in a row, all slower or all faster.
        self._differing: list[tuple[int, float, float]] = []
        self._is_faster = False  # those stretches

    def observe(self, step: Step) -> SpeedChange | None:
        """The change of speed, if this step completes what shows it."""
        if self._warmup or self._is_done:
            self._warmup = max(0, self._warmup - 1)
            return None
        self._steps += 1
        self._seconds += self.settings.tokens_per_step / step.tokens_per_second
        if self._seconds < self._length:
            return None
        others = self._others()  # since the stretch before
        speed = self.settings.seconds_per_step * self._steps / self._seconds  # as a fraction of the measured one
        if _SLOWER < speed < _FASTER or self._is_faster != (speed > 1):
            self._differing.clear()
        if not _SLOWER < speed < _FASTER:
            self._differing.append((self._steps, self._seconds, others))
        self._is_faster, self._steps, self._seconds = speed > 1, 0, 0.0
        if len(self._differing) < _STRETCHES:
            return None
        self._is_done = True
        return self._change(step, self._differing[1:])  # the first one may have begun at the measured speed

    def _change(self, step: Step, stretches: list[tuple[int, float, float]]) -> SpeedChange:
        settings = self.settings
        per_step = sum(seconds for _, seconds, _ in stretches) / sum(steps for steps, _, _ in stretches)
        now = settings.from_here(step.step, step.progress, per_step)
        others_compute = all(others > TOLERANCE for _, _, others in stretches)
        return SpeedChange(
            step=step.step,
            tokens_per_second=settings.tokens_per_step / per_step,
            measured=settings.tokens_per_step / settings.seconds_per_step,
            others_compute=others_compute and per_step > settings.seconds_per_step,
            steps=round(now.steps),
            seconds_left=max(0.0, now.steps - step.step) * per_step,
            expected=now.expected,
        )


class SpeedSink(Sink):
    """Adds the change of speed of a planned run to its events. The steps of a teacher are not observed."""

    def __init__(self, settings: PlannedSettings) -> None:
        self._settings = settings
        self._monitor: SpeedMonitor | None = None

    def receive(self, event: Event) -> Iterable[Event]:
        if isinstance(event, Started):
            self._monitor = None if event.is_teacher else SpeedMonitor(self._settings)
        elif isinstance(event, Step) and self._monitor is not None:
            change = self._monitor.observe(event)
            return () if change is None else (change,)
        return ()


def speed_sink(job: Job, settings: SinkSettings) -> SpeedSink | None:  # noqa: ARG001
    """The sink that compares the speed of a job with that of its plan, if it has one."""
    return SpeedSink(job.plan.settings) if isinstance(job.plan, MeasuredPlan) else None
