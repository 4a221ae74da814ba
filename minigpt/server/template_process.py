"""Renders a model's chat template in a child process that may take only so much time and memory.

A template is a program of whoever made the model. jinja2's sandbox keeps it from files and from Python's inside, but
limits neither: one expression may take 3.8 GB and 30 s.
"""

import asyncio
import contextlib
import json
import os
import signal
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

from minigpt.server.api_error import ApiError
from minigpt.server.side_work import Turns

_SECONDS = 10  # for one rendering
_MEMORY = 512 << 20  # bytes of address space
_LONGEST_TEXT = 4_000_000  # characters that a template may make of a conversation
_RENDERED, _REFUSED, _NO_MEMORY = "rendered", "refused", "no memory"
_SIZE = struct.Struct("<I")  # before each message in JSON


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
            return await self._render({"messages": messages, **tokens})

    async def _render(self, variables: Mapping[str, Any]) -> str:
        try:
            if self._child is None:
                self._child = await asyncio.create_subprocess_exec(
                    # With -P, so that no module in the working directory is imported instead of Python's.
                    *(sys.executable, "-P", "-m", __name__),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                )
                await self._ask(self._template)  # answered once the child has started
            async with asyncio.timeout(self._seconds):
                answer = await self._ask(variables)
        except TimeoutError as error:
            await self.stop()
            message = f"the model's chat template took longer than {self._seconds:g} s"
            raise ApiError(504, message, code="timeout") from error
        except (asyncio.IncompleteReadError, OSError) as error:
            await self.stop()
            raise _refusal("its process has ended") from error
        except asyncio.CancelledError:
            await self.stop()
            raise
        if answer["status"] == _NO_MEMORY:
            await self.stop()
        if answer["status"] != _RENDERED:
            raise _refusal(answer["text"])
        return answer["text"]

    async def _ask(self, message: Any) -> dict[str, str]:
        assert self._child is not None
        requests, answers = self._child.stdin, self._child.stdout
        assert requests is not None
        assert answers is not None
        requests.write(_packed(message))
        await requests.drain()
        (size,) = _SIZE.unpack(await answers.readexactly(_SIZE.size))
        return json.loads(await answers.readexactly(size))

    async def stop(self) -> None:
        """Kills the child."""
        if self._child is not None:
            child, self._child = self._child, None
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await asyncio.shield(child.communicate())


def _refusal(reason: str) -> ApiError:
    return ApiError(400, f"the model's chat template refuses the conversation: {reason}")


def _packed(message: Any) -> bytes:
    raw = json.dumps(message).encode()
    return _SIZE.pack(len(raw)) + raw


# In the child


def _main(requests: BinaryIO, answers: BinaryIO) -> None:
    """Reads a template, then what to render it with, again and again; answers each."""
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
    source, answer = _received(requests), {}
    template: Any = None
    while True:
        answers.write(_packed(answer))
        answers.flush()
        variables = _received(requests)
        if hasattr(signal, "alarm"):
            signal.alarm(_SECONDS + 1)  # ends this process if the server is gone
        try:
            template = template or environment.from_string(source)
            answer = {"status": _RENDERED, "text": _joined(template.generate(**variables, add_generation_prompt=True))}
        except MemoryError:
            answer = {"status": _NO_MEMORY, "text": f"it takes more than {_MEMORY >> 20} MB of memory"}
        except Exception as error:  # a template can raise any, RecursionError too
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            answer = {"status": _REFUSED, "text": reason}
        if hasattr(signal, "alarm"):
            signal.alarm(0)


def _received(requests: BinaryIO) -> Any:
    """The next message; ends the process if there are no more."""
    size = requests.read(_SIZE.size) or sys.exit()
    return json.loads(requests.read(*_SIZE.unpack(size)))


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
    _main(sys.stdin.buffer, sys.stdout.buffer)
