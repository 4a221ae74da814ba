"""Connections: a limit on how many there are, and on how long one may stay without a request."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

_IDLE_SECONDS = 20.0  # from the opening of a connection to the end of its first request's headers


def limited_protocol(max_connections: int, idle_seconds: float = _IDLE_SECONDS) -> type[H11Protocol]:
    """uvicorn's HTTP protocol with these limits; it has none before the first request of a connection.

    A connection above the limit is closed at once: an answer to each would cost more than the limit saves.
    """

    class LimitedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > max_connections:
                self.transport.abort()
                return
            self._deadline = self.loop.call_later(idle_seconds, self._close_unused)

        def _close_unused(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            super().connection_lost(exc)

        def _unsupported_upgrade_warning(self) -> None:
            """Says nothing: a request to upgrade to another protocol is answered as if it had not asked."""

    return LimitedProtocol
