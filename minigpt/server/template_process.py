"""Renders a model's chat template in a child process that may take only so much time and memory.

A template is a stranger's program. jinja2's sandbox keeps it from files and from Python's inside, but
limits neither: one expression may take 3.8 GB and 30 s.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minigpt.server.api_error import ApiError
from minigpt.server.side_work import Turns

_SECONDS = 10  # for one rendering
_MEMORY = 512 << 20  # bytes of address space
_LONGEST_TEXT = 4_000_000  # characters that a template may make of a conversation
_LONGEST_ANSWER = 1 << 26  # bytes; a character has at most 12 in JSON
_ENDED, _NO_MEMORY = "its process has ended", f"it takes more than {_MEMORY >> 20} MB of memory"


class TemplateProcess:
    """The child that renders one template. It starts with the first rendering, and again after it was killed."""

    def __init__(self, name: str, template: str, *, seconds: float, most: int) -> None:
        """`name` is the model's, and `most` renderings may wait, each of which may take so many seconds."""
        self._template, self._seconds = template, min(seconds, _SECONDS)
        self._turns = Turns(f"the chat template of {name}", most)
        self._child: asyncio.subprocess.Process | None = None

    async def render(self, messages: Sequence[Mapping[str, str]], tokens: Mapping[str, str]) -> str:
        """The text of a conversation, up to where the model's answer begins.

        Raises: ApiError if the template refuses the conversation, fails, or takes too long or too much memory, and if
        too many wait for it.
        """
        async with self._turns.turn():
            try:
                if self._child is None:
                    self._child = await asyncio.create_subprocess_exec(
                        # With -P, so that no module in the working directory is imported instead of Python's.
                        *(sys.executable, "-P", "-m", __name__),
                        stdin=asyncio.subprocess.PIPE,
                        stdout=asyncio.subprocess.PIPE,
                        limit=_LONGEST_ANSWER,
                        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    )
                    await self._ask(self._template)  # answered once the child has started
                async with asyncio.timeout(self._seconds):
                    answer = await self._ask({"messages": messages, **tokens})
            except TimeoutError as error:
                await self.stop()
                message = f"the model's chat template took longer than {self._seconds:g} s"
                raise ApiError(504, message, code="timeout") from error
            except BaseException:  # it was cancelled, or a bug
                await self.stop()
                raise
            if answer.get("error") in (_ENDED, _NO_MEMORY):
                await self.stop()
        if "error" in answer:
            raise ApiError(400, f"the model's chat template refuses the conversation: {answer['error']}")
        return answer["text"]

    async def _ask(self, message: Any) -> dict[str, str]:
        assert self._child is not None
        requests, answers = self._child.stdin, self._child.stdout
        assert requests is not None
        assert answers is not None
        with contextlib.suppress(ConnectionError):  # then there is no answer either
            requests.write(f"{json.dumps(message)}\n".encode())
            await requests.drain()
        answer = await answers.readline()
        return json.loads(answer) if answer.endswith(b"\n") else {"error": _ENDED}

    async def stop(self) -> None:
        """Kills the child."""
        if self._child is not None:
            child, self._child = self._child, None
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await asyncio.shield(child.communicate())


# In the child


def _main() -> None:
    """Reads a template in the first line, then what to render it with in each further one; answers each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends the child
    import jinja2.sandbox  # before memory is limited

    if sys.platform != "win32":
        import resource

        limits = [(resource.RLIMIT_CORE, 0)]
        limits += [(resource.RLIMIT_AS, _MEMORY)] if sys.platform == "linux" else []  # macOS refuses it
        for kind, limit in limits:
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    source, template = json.loads(sys.stdin.buffer.readline()), None
    answer: dict[str, str] = {}
    while True:
        sys.stdout.buffer.write(f"{json.dumps(answer)}\n".encode())
        sys.stdout.buffer.flush()
        if not (line := sys.stdin.buffer.readline()):
            return
        if hasattr(signal, "alarm"):
            signal.alarm(_SECONDS + 1)  # ends this process if the server is gone
        try:
            template = template or environment.from_string(source)
            answer = {"text": _joined(template.generate(**json.loads(line), add_generation_prompt=True))}
        except MemoryError:
            answer = {"error": _NO_MEMORY}
        except Exception as error:  # a template can raise any, RecursionError too
            answer = {"error": " ".join(str(error).split())[:200] or type(error).__name__}
        if hasattr(signal, "alarm"):
            signal.alarm(0)


def _joined(parts: Iterable[str]) -> str:
    text, length = [], 0
    for part in parts:
        text.append(part)
        length += len(part)
        if length > _LONGEST_TEXT:
            raise ValueError("the text is too long")
    return "".join(text)


def _refuse(message: object) -> None:
    raise ValueError(message if isinstance(message, str) else "it gives no reason")


if __name__ == "__main__":
    _main()
