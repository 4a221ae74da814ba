"""What the world outside asks of a run while it trains, from a signal handler or another thread; it does nothing."""

from dataclasses import dataclass


@dataclass
class Control:
    """Requests that training looks at between two steps: to save now, or to save and stop."""

    save: bool = False
    stop: bool = False
