"""A process that imports torch once and forks a child for every request: the import takes seconds, a tiny run does not.

A test file starts itself as the server: run as a script, it calls `serve` with the function that forks.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any


class ForkServer:
    """The server as the test sees it, with these environment variables."""

    def __init__(self, script: str, **environment: str) -> None:
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment
        self.process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | environment,
        )  # fmt: skip

    def ask(self, **request: Any) -> dict[str, Any]:
        """What the function in the server returns; the `code` of its child must be 0 or that of a kill."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert answer["code"] in (0, -signal.SIGKILL), request
        return answer

    def close(self) -> None:
        self.process.communicate()


def serve(fork: Callable[..., dict[str, Any]]) -> None:
    """Calls the function for every line of standard input, and prints what it returns."""
    importlib.import_module("torch._dynamo")  # takes a second; the first optimizer would import it
    for line in sys.stdin:
        sys.stdout.write(json.dumps(fork(**json.loads(line))) + "\n")
        sys.stdout.flush()
