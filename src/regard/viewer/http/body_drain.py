"""Reading the rest of a refused body, so that the client gets the answer.

A server that closes a connection with unread data resets it, and the client loses the answer that it was sent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Receive


class BodyDrain:
    """Reads and forgets at most `size` bytes, for at most `seconds`, of at most `count` requests at a time."""

    def __init__(self, size: int, seconds: float, count: int) -> None:
        self.size, self.seconds, self.count = size, seconds, count
        self.active = 0

    async def read(self, receive: Receive) -> bool:
        """Whether the body ended. If not, the connection is to be closed."""
        if self.active >= self.count:
            return False
        self.active += 1
        try:
            async with asyncio.timeout(self.seconds):
                return await self._read(receive)
        except TimeoutError:
            return False
        finally:
            self.active -= 1

    async def _read(self, receive: Receive) -> bool:
        size = 0
        while size <= self.size:
            message = await receive()
            size += len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body", False):
                return True
        return False
