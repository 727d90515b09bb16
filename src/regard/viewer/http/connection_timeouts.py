"""Timeouts of connections: one that sends its request, or reads its answer, too slowly is closed.

uvicorn closes a connection that is idle between two requests. It waits without end for a client that sends half a
request or does not read, and a few hundred of those would use up the server's sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

REQUEST = 60.0
"""Seconds for a whole request, from the connection or its first byte to the end of its body."""
FIRST = 15.0
"""Seconds from the connection to the first request's headers."""
READ = 60.0
"""Seconds in which a client must read on once the server's send buffer is full."""
CONNECTIONS = 512
"""Open connections; further ones get a 503."""

INCOMPLETE = (h11.IDLE, h11.SEND_BODY)
"""States of a client that has not sent its whole request."""


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a limit on the time that a client may take."""

    receiving: asyncio.TimerHandle | None = None
    sending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.receiving = self.loop.call_later(FIRST, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        before = self.conn.their_state
        super().data_received(data)
        state = self.conn.their_state
        if state not in INCOMPLETE:
            self._stop_receiving()
        elif self.receiving is None or (
            before is h11.IDLE and state is h11.SEND_BODY
        ):  # a request, or its body, begins
            self._stop_receiving()
            self.receiving = self.loop.call_later(REQUEST, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.sending is None:
            self.sending = self.loop.call_later(READ, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_sending()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_receiving()
        self._stop_sending()
        super().connection_lost(exc)

    def _stop_receiving(self) -> None:
        if self.receiving is not None:
            self.receiving.cancel()
            self.receiving = None

    def _stop_sending(self) -> None:
        if self.sending is not None:
            self.sending.cancel()
            self.sending = None


def options() -> dict[str, Any]:
    """What `uvicorn.Config` is given."""
    return {"http": TimedProtocol, "limit_concurrency": CONNECTIONS, "timeout_keep_alive": 5}
