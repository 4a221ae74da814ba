"""A run's events, written to TensorBoard or Weights & Biases for those who have them; nothing here is ever needed.

What another program's client says against it ends the tracking, in one line, and never the training.
"""

import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from minigpt.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.storage.run import Run
    from minigpt.training.events import Event


def check_trackers(names: Iterable[str]) -> None:
    """Raises ConfigError for a tracker that there is none of, or whose package is not installed."""
    for name in names:
        if name not in _TRACKERS:
            raise ConfigError(f"log ({name!r}) must be one of {', '.join(_TRACKERS)}")
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"--log {name} needs the package {name}; install it with: pip install 'minigpt[{name}]'")


@contextmanager
def tracking(names: Iterable[str], run: "Run", out: "Console") -> Iterator[Callable[["Event"], None]]:
    """A function that writes an event to each of the trackers named, `tensorboard` and `wandb`.

    Raises: ConfigError where one cannot start.
    """
    names = dict.fromkeys(names)
    check_trackers(names)
    feeds: dict[str, _Feed] = {}

    def attempt(act: Callable[[_Feed], None]) -> None:
        for name, feed in list(feeds.items()):
            try:
                act(feed)
            except Exception as error:  # of any kind: the clients promise none
                del feeds[name]
                out.print(f"{name} takes no more figures ({_reason(error)}); training goes on without it", markup=False)

    try:
        for name in names:
            feeds[name] = _Feed(_start(name, run))
        yield lambda event: attempt(lambda feed: feed.write(event))
    finally:
        attempt(lambda feed: feed.tracker.close())


class _Tracker:
    """Where events go to; steps come in order, but for a run that goes back."""

    mend = "install it anew"

    def __init__(self, run: "Run") -> None:
        self.run = run

    def take_up(self, step: int) -> None:
        """Says that the steps from this one on come next, whatever was written of them before."""

    def figures(self, step: int, figures: Mapping[str, float]) -> None:
        """Writes named figures of a step."""
        raise NotImplementedError

    def sample(self, step: int, text: str) -> None:
        """Writes what the model writes after a step."""
        raise NotImplementedError

    def flush(self) -> None:
        """Puts on the disk what a run that goes on from here will not write again."""

    def close(self) -> None:
        """Writes what is left."""
        raise NotImplementedError


class _Feed:
    """One tracker and the step that it expects next."""

    def __init__(self, tracker: _Tracker) -> None:
        self.tracker = tracker
        self.expected: int | None = None

    def write(self, event: "Event") -> None:
        """Gives the tracker what the event holds for it."""
        from minigpt.training.events import Notice, Sample, Saved, Step

        if isinstance(event, Notice):
            return
        if isinstance(event, Saved):
            if event.what == "last":
                self.tracker.flush()
            return
        first = event.step if isinstance(event, Step) else event.step + 1  # the others belong to a step that is done
        if self.expected is None or first < self.expected:
            self.tracker.take_up(first)
        self.expected = event.step + 1
        if isinstance(event, Sample):
            self.tracker.sample(event.step, event.prompt + event.text)
        else:
            self.tracker.figures(event.step, _figures(event))


def _figures(event: "Event") -> dict[str, float]:
    """An event's figures by the names that the charts have; those before the slash share a section."""
    from minigpt.training.events import Evaluation, Finished, Step

    names: dict[type, dict[str, str]] = {
        Step: {
            "train/loss": "loss",
            "train/learning_rate": "learning_rate",
            "train/gradient_norm": "gradient_norm",
            "train/tokens_per_second": "tokens_per_second",
        },
        Evaluation: {"validation/loss": "validation_loss", "validation/bits_per_byte": "bits_per_byte"},
        Finished: {"best/validation_loss": "validation_loss", "best/bits_per_byte": "bits_per_byte"},
    }
    values = {name: getattr(event, field) for name, field in names[type(event)].items()}
    return {name: value for name, value in values.items() if value is not None}


class _TensorBoard(_Tracker):
    """Event files in the run's folder; `tensorboard --logdir checkpoints` draws them.

    A run that is resumed or goes back opens another file, which hides the later steps of those before.
    """

    def __init__(self, run: "Run") -> None:
        from torch.utils.tensorboard import SummaryWriter

        super().__init__(run)
        self._open: Callable[..., Any] = SummaryWriter
        self._writer: Any = None

    def take_up(self, step: int) -> None:
        self.close()
        self._writer = self._open(str(self.run.directory / "tensorboard"), purge_step=step)

    def figures(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def sample(self, step: int, text: str) -> None:
        self._writer.add_text("sample", "\n".join(f"    {line}" for line in text.splitlines()), step)  # verbatim

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Wandb(_Tracker):
    """A run of Weights & Biases with this run's name and record; WANDB_MODE=offline and its other variables hold.

    It takes no step twice of its own accord: one that goes back is heard again where it comes to something new.
    """

    mend = "log in by `wandb login`, or set WANDB_MODE=offline"

    def __init__(self, run: "Run") -> None:
        super().__init__(run)
        wandb = importlib.import_module("wandb")
        self._html = wandb.Html
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "minigpt"),
            name=run.directory.name,
            id=re.sub(r"[^\w-]+", "-", f"{run.directory.name}-{run.record.started or ''}")[:128],
            resume="allow",
            config=run.record.to_dict(),
            dir=str(run.directory),
        )

    def figures(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def sample(self, step: int, text: str) -> None:
        self._run.log({"sample": self._html(f"<pre>{escape(text)}</pre>")}, step=step)

    def close(self) -> None:
        self._run.finish()


_TRACKERS: dict[str, type[_Tracker]] = {"tensorboard": _TensorBoard, "wandb": _Wandb}


def _start(name: str, run: "Run") -> _Tracker:
    try:
        return _TRACKERS[name](run)
    except Exception as error:  # of any kind: the clients promise none
        raise ConfigError(f"--log {name} cannot start ({_reason(error)}); {_TRACKERS[name].mend}") from error


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
