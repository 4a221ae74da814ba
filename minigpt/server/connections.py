"""Connections: limits on how many there are, and on how long one may stay without a request or without reading."""

import asyncio
import contextlib
import socket

from uvicorn.protocols.http.h11_impl import H11Protocol

_IDLE_SECONDS = 20.0  # from the opening of a connection, or the first byte after an answer, to the end of the headers
# While an answer waits in memory because its client does not read, this much must leave within this time.
_WRITE_SECONDS, _LEAST_WRITTEN = 20.0, 1 << 17


def limited_protocol(
    max_connections: int, idle_seconds: float = _IDLE_SECONDS, write_seconds: float = _WRITE_SECONDS
) -> type[H11Protocol]:
    """uvicorn's HTTP protocol with these limits.

    uvicorn itself limits only the time from an answer to the next byte. A connection above the limit is closed at once:
    an answer to each would cost more than the limit saves.
    """

    class LimitedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None
        _write_deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            connection = transport.get_extra_info("socket")
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # so that the buffer shrinks steadily, not by megabytes at a time
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _LEAST_WRITTEN)
            if len(self.connections) > max_connections:
                self.transport.abort()
                return
            self._limit_wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._limit_wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_wait()
            self._end_writing()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._limit_writing()

        def resume_writing(self) -> None:
            self._end_writing()
            super().resume_writing()

        def _limit_writing(self) -> None:
            """Aborts the connection if too little of what waits has left in time."""
            before = self.transport.get_write_buffer_size()

            def check() -> None:
                if before - self.transport.get_write_buffer_size() < min(_LEAST_WRITTEN, before):
                    self.transport.abort()
                else:
                    self._limit_writing()

            self._write_deadline = self.loop.call_later(write_seconds, check)

        def _end_writing(self) -> None:
            if self._write_deadline is not None:
                self._write_deadline.cancel()
                self._write_deadline = None

        def _limit_wait(self) -> None:
            """Limits the time until the headers of a request are complete; further bytes do not extend it."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._end_wait()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(idle_seconds, self.transport.abort)

        def _end_wait(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _unsupported_upgrade_warning(self) -> None:
            """Says nothing: a request to upgrade to another protocol is answered as if it had not asked."""

    return LimitedProtocol
