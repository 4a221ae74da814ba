"""What Ctrl-C, SIGTERM, a closed terminal and SIGUSR1 mean while a run trains; it trains nothing."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minigpt.training.clock import Control

Handler = Callable[[int, object], None]
HANGUP: int | None = getattr(signal, "SIGHUP", None)  # the terminal was closed; Windows has none
STOPS: list[int] = [signal.SIGINT, signal.SIGTERM] + ([] if HANGUP is None else [HANGUP])


@contextmanager
def handling(stop: Handler, save: Handler) -> Iterator[None]:
    """Calls `stop` for Ctrl-C, SIGTERM and SIGHUP and `save` for SIGUSR1, where the system has them."""
    handlers = dict.fromkeys(STOPS, stop)
    if HANGUP is not None and signal.getsignal(HANGUP) is signal.SIG_IGN:  # under nohup
        del handlers[HANGUP]
    if hasattr(signal, "SIGUSR1"):  # Windows has none
        handlers[signal.SIGUSR1] = save
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def ignoring_saves() -> Iterator[None]:
    """Leaves SIGUSR1 without effect, here and in the processes started meanwhile, where nothing could be saved yet: its
    default is to end the process."""
    if not hasattr(signal, "SIGUSR1"):
        yield
        return
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def heeding_signals(control: "Control", on_stop: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """Makes the first Ctrl-C, SIGTERM or SIGHUP a request to stop, noted in a list, and SIGUSR1 one to save; a second
    one to stop is a KeyboardInterrupt, but for SIGHUP: a shell and the system each send one for the same terminal."""
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        if received and number == HANGUP:
            return
        if received:
            raise KeyboardInterrupt
        received.append(number)
        control.stop = True
        on_stop()

    def save(_: int, __: object) -> None:
        control.save = True

    with handling(stop, save):
        yield received
