"""A fake of the package wandb."""

import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any


class Wandb(types.ModuleType):
    """A fake of the package that records its calls."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None, origin="here")
        self.runs: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.finished = 0
        self.fail: Callable[[], None] = lambda: None

    def init(self, **arguments: Any) -> "Wandb":
        self.fail()
        self.runs.append(arguments)
        return self

    def log(self, figures: dict[str, Any], step: int) -> None:
        self.fail()
        self.logged.append((step, figures))

    def finish(self) -> None:
        self.finished += 1

    @staticmethod
    def Html(text: str) -> str:  # noqa: N802
        return text
