"""The handling of each signal while a run trains."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from minigpt.cli.signals import HANGUP, STOPS, exiting_on_stops, signals_as_requests
from minigpt.data.corpus_cache import publish
from minigpt.training.clock import Control

needs_hangup = pytest.mark.skipif(HANGUP is None, reason="this system has no SIGHUP")


@pytest.fixture(autouse=True)
def default_hangup() -> Iterator[None]:
    """Restores the default handling of SIGHUP, as the tests may run under nohup."""
    before = None if HANGUP is None else signal.signal(HANGUP, signal.SIG_DFL)
    yield
    if HANGUP is not None:
        signal.signal(HANGUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_requests_a_stop_and_a_ctrl_c_after_it_interrupts(number: int) -> None:
    control = Control()
    with signals_as_requests(control) as received:
        signal.raise_signal(number)
        assert control.stop
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert received == [number]


@pytest.mark.parametrize("number", [number for number in STOPS if number != signal.SIGINT])
def test_before_training_a_stop_raises_so_that_temporary_files_are_removed(number: int, tmp_path: Path) -> None:
    signal.signal(number, signal.SIG_DFL)
    with pytest.raises(SystemExit) as left, exiting_on_stops(), publish(tmp_path / "corpus", list):
        signal.raise_signal(number)
    assert left.value.code == 128 + number
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) is signal.SIG_DFL


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a script's background job has it
    try:
        control = Control()
        with signals_as_requests(control) as received:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
        assert (control.stop, received) == (True, [signal.SIGTERM])
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, earlier)


@needs_hangup
def test_an_ignored_sighup_stays_ignored_and_all_handlers_are_restored() -> None:
    assert HANGUP is not None
    before = [signal.getsignal(number) for number in STOPS]
    with signals_as_requests(Control()):
        pass
    assert [signal.getsignal(number) for number in STOPS] == before
    earlier = signal.signal(HANGUP, signal.SIG_IGN)  # as nohup does
    try:
        control = Control()
        with signals_as_requests(control):
            os.kill(os.getpid(), HANGUP)
        assert not control.stop
        assert signal.getsignal(HANGUP) is signal.SIG_IGN
    finally:
        signal.signal(HANGUP, earlier)
