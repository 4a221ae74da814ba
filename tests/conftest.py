"""What holds for every test."""

import signal

import pytest


def pytest_configure() -> None:
    """Lets Ctrl-C reach the programs that tests start: a shell's background job ignores it, and so would they."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _plans_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans choose float32: which dtype is faster depends on the moment, and runs that are compared need the same."""
    monkeypatch.setattr("minigpt.device.multiplies_bfloat16_faster", lambda: False)
