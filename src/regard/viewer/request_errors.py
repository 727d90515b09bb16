"""Why a request has no result: it cannot be answered, or its client disconnected."""

from __future__ import annotations


class RequestError(ValueError):
    """A request that cannot be answered: the HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ClientDisconnected(Exception):
    """The client closed the connection before the response was ready."""
