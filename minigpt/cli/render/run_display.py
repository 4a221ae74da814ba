"""The display of a job in the terminal: its training, and the table of its result."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from minigpt.cli.render.annotations import Annotations, Result
from minigpt.cli.render.console import console, facts
from minigpt.cli.render.training_display import TrainingDisplay
from minigpt.evaluation.perplexity import perplexity
from minigpt.runs.events import Event, Started
from minigpt.runs.job import Job, Sink, stage_state
from minigpt.storage.model_list import disk_bytes
from minigpt.storage.run import Run
from minigpt.tokenizer.display import one_line
from minigpt.training.events import Finished
from minigpt.units import duration, shown_loss, shown_perplexity, size

_TITLES = {"early stop": "stopped early: the validation loss no longer improves", "diverged": "diverged"}


class RunDisplay(Sink):
    """Draws the events of a job, which `processes` train; a distilled run starts twice. The result goes to stdout."""

    def __init__(self, job: Job, out: Console, processes: int) -> None:
        self.job, self.out, self.processes = job, out, processes
        self.finished: Finished | None = None
        self._training: TrainingDisplay | None = None

    @property
    def annotations(self) -> Sequence[Annotations]:
        return self._training.annotations if self._training else ()

    def stop(self) -> None:
        """Says that a stop was requested."""
        if self._training is not None:
            self._training.stop()

    def receive(self, event: Event) -> Iterable[Event]:
        if isinstance(event, Started):
            self._start(event)
        elif self._training is not None and isinstance(event, Finished):
            self.finished = event
            self._training.__exit__()
            print_result(self.job, event, self._training, self.processes)
        elif self._training is not None:
            self._training.show(event)
        return ()

    def close(self, finished: Finished | None) -> Iterable[str]:
        if self._training is not None and finished is None:
            self._training.__exit__()
        return ()

    def _start(self, started: Started) -> None:
        self.close(None)
        self._training = TrainingDisplay(started, self.out).__enter__()
        run = Run.open(started.directory) if started.is_teacher else self.job.run
        done = started.step  # the resumed run writes the later lines again
        if run.record.measured_since == done:
            done -= 1  # and the evaluation at this step, which measured something else
        earlier = (line for line in run.read_log() if line["step"] <= done)
        self._training.read_log(run.record.comparable_evaluations(earlier))


def print_result(job: Job, finished: Finished, display: TrainingDisplay, processes: int) -> None:
    """The table of the result: loss, speed, what the edges add, and where the model is."""
    speed = None
    if display.training_seconds:
        speed = display.steps * display.tokens_per_step / display.training_seconds
    rows = {"steps": f"{finished.step:,} in {duration(finished.seconds)}"}
    rows["speed"] = "no step was taken" if speed is None else f"{speed:,.0f} tokens/s"
    if finished.validation_loss is not None and finished.bits_per_byte is not None:
        rows["best weights"] = f"step {finished.best_step:,}"
        scored, read = job.corpus.scored(job.config.scored_role), finished.validation_tokens
        n_scored = len(job.corpus.validation) - 1 if scored is None else int(scored[1:].sum())  # the first never is
        tokens = f"all {read:,} tokens" if read >= n_scored else f"{read:,} of {n_scored:,} tokens"
        rows["validation loss"] = f"{shown_loss(finished.validation_loss)} nats per token, {tokens}"
        rows["perplexity"] = f"{shown_perplexity(perplexity(finished.validation_loss))} per token"
        rows["bits per byte"] = f"{shown_loss(finished.bits_per_byte)} {job.config.scored_text}".rstrip()
    out, result = console(stderr=False), Result(job, finished, speed, processes)
    out.print(Text(_TITLES.get(finished.reason, "done"), style="bold"))
    for each in display.annotations:
        rows |= each.result_rows(result)
        for sentence in each.verdict(result):
            out.print(one_line(sentence), soft_wrap=not out.is_terminal)
    rows["saved in"] = _saved(job.run)
    out.print(facts("", rows))


def _saved(run: Run) -> str:
    """The folder of a run, its size, and the part of it that only resuming needs."""
    stage = stage_state(run)
    folders = [run.last_path.parent, *([stage.folder] if stage else [])]
    states = sum(map(disk_bytes, folders))
    names = " and ".join(f"{folder.name}/" for folder in folders if disk_bytes(folder))
    kept = f", of it {size(states)} in {names} for --resume" if states else ""
    return f"{run.directory}, {size(disk_bytes(run.directory))}{kept}"
