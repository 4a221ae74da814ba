"""Handles Ctrl-C, SIGTERM, a closed terminal and SIGUSR1 while a run trains."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minigpt.training.clock import Control

Handler = Callable[[int, object], None]
HANGUP: int | None = getattr(signal, "SIGHUP", None)  # the terminal was closed; Windows has no such signal
STOPS: list[int] = [signal.SIGINT, signal.SIGTERM] + ([] if HANGUP is None else [HANGUP])


_interrupts: list[int] = []  # those that raised; one that arrives in the middle of an import may be lost there


def exit_on_interrupt() -> None:
    """Makes Ctrl-C end the process at once, unless it is ignored, as in a script's background."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def _exit(*_: object) -> None:
    os._exit(130)


def raise_on_interrupt() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt from here on, so that files are closed and temporary ones removed."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, _raise)


def _raise(number: int, _: object) -> None:
    _interrupts.append(number)
    raise KeyboardInterrupt


def was_interrupted() -> bool:
    """Whether Ctrl-C has raised KeyboardInterrupt, and the command has not handled it."""
    return bool(_interrupts)


def forget_interrupts() -> None:
    """Says that the command has handled all interrupts until now, and continues."""
    _interrupts.clear()


def raise_lost_interrupt() -> None:
    """Raises KeyboardInterrupt if Ctrl-C did so before and an import lost it: C extensions drop exceptions."""
    if was_interrupted():
        raise KeyboardInterrupt


def ignore_interrupts() -> None:
    """Makes Ctrl-C do nothing from here on: the command has ended, and nothing is left to interrupt."""
    if signal.getsignal(signal.SIGINT) in (_exit, _raise):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _handling(handlers: Mapping[int, Any]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def handling(stop: Handler, save: Handler) -> AbstractContextManager[None]:
    """Calls `stop` for Ctrl-C, SIGTERM and SIGHUP and `save` for SIGUSR1, on systems that have them.

    Ctrl-C and SIGHUP stay ignored where they are: in a job that a script began with `&`, and under nohup.
    """
    handlers = dict.fromkeys(STOPS, stop)
    for number in (signal.SIGINT, HANGUP):
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            del handlers[number]
    if hasattr(signal, "SIGUSR1"):  # not on Windows
        handlers[signal.SIGUSR1] = save
    return _handling(handlers)


def ignoring_sigusr1() -> AbstractContextManager[None]:
    """Ignores SIGUSR1, here and in the processes started meanwhile, while there is nothing to save yet.

    By default the signal would end the process.
    """
    return _handling({signal.SIGUSR1: signal.SIG_IGN} if hasattr(signal, "SIGUSR1") else {})


@contextmanager
def exiting_on_stops() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise SystemExit, so that temporary files are removed, as they are after Ctrl-C.

    By default they end the process at once. The exit code is the same.
    """

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    numbers = [number for number in STOPS if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            if signal.getsignal(number) is leave:
                signal.signal(number, signal.SIG_DFL)


@contextmanager
def signals_as_requests(control: "Control", on_stop: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """Turns the first Ctrl-C, SIGTERM or SIGHUP into a request to stop, and SIGUSR1 into a request to save.

    Yields the list of the stop signals received. A second Ctrl-C raises KeyboardInterrupt. A second SIGTERM or SIGHUP
    does nothing: Slurm sends a process several, and when a terminal is closed, the shell and the system each send one.
    """
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        if received and number != signal.SIGINT:
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
