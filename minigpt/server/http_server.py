"""Runs the application on a socket until Ctrl-C or SIGTERM, and ends it within a bounded time."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from minigpt.errors import ConfigError
from minigpt.server.application import Log, build_application
from minigpt.server.connections import limited_protocol
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import Models, ServedModel
from minigpt.server.side_work import in_own_thread

_TOLD = 1.0  # seconds for requests that were ended to send their last piece


class _Server(uvicorn.Server):
    """uvicorn's server with its own end: new requests are refused, running ones get time, then are told."""

    def __init__(self, application: Starlette, config: ServeConfig) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                http=limited_protocol(config.max_connections),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=round(config.shutdown_timeout + _TOLD) + 1,
            )
        )
        self._hub, self._seconds = application.state.hub, config.shutdown_timeout
        self._loop = asyncio.get_running_loop()
        self.received: list[int] = []  # the signals

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handles signals here; uvicorn would raise them again at the end."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._loop.call_soon_threadsafe(self._end_again if self.should_exit else self._end)
        self.received.append(sig)
        self.should_exit = True

    def _end(self) -> None:
        self._hub.refuse()
        self._loop.call_later(self._seconds, self._hub.end_requests)

    def _end_again(self) -> None:
        """After another signal."""
        self._hub.end_requests()
        self._loop.call_later(_TOLD, setattr, self, "force_exit", True)


def bind(config: ServeConfig) -> socket.socket:
    """A socket that listens on the configured address.

    Raises: ConfigError if the port is taken or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"the server cannot listen on {config.host}:{config.port} ({reason.lower()}); give another --port or --host"
        ) from error


def address(listening: socket.socket, config: ServeConfig) -> str:
    """The URL at which programs on this machine reach the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"


def run(
    listening: socket.socket,
    config: ServeConfig,
    models: Models,
    *,
    on_loaded: Callable[[Sequence[ServedModel]], None],
    log: Log,
) -> list[int]:
    """Serves until a signal; returns the signals that ended it. Loads the models while it already listens.

    Raises: MinigptError if a model cannot be loaded; what else `models` or `on_loaded` raise.
    """
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # errors are answered and printed by the application
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of every write to a client that has left
    return asyncio.run(_run(listening, config, models, on_loaded, log))


async def _run(
    listening: socket.socket,
    config: ServeConfig,
    models: Models,
    on_loaded: Callable[[Sequence[ServedModel]], None],
    log: Log,
) -> list[int]:
    server = _Server(build_application(models, config, log), config)

    async def load() -> None:
        try:
            on_loaded(await in_own_thread(models.load))
        except Exception:  # a bug, too: it is raised when the server has ended
            server.should_exit = True
            raise

    loading = asyncio.create_task(load())
    await server.serve(sockets=[listening])
    loading.cancel()
    with suppress(asyncio.CancelledError):
        await loading
    return server.received
