"""Server: the viewer on this machine, for one person and a browser; or for others, with a token."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import threading
import time
import webbrowser
from typing import TYPE_CHECKING
from urllib.parse import quote

import uvicorn

from .application import create_app
from .guard import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..data.library import Library

HERE = "127.0.0.1"
STOP = 2
"""Seconds that open requests are given when the server ends."""


class Server:
    """Listens from the moment it is made, so that its address is known; answers once `run` is called."""

    def __init__(self, library: Library, host: str = HERE, port: int = 0, view: str = "") -> None:
        self.view = view  # to open the page at; its own choice where there is none
        self.token = None if loopback(host) else secrets.token_urlsafe(24)
        every = host in ("0.0.0.0", "::")
        hosts = frozenset() if every else LOOPBACK | {host.lower(), f"[{host.lower()}]"}
        self.app = create_app(library, hosts, self.token)
        self._socket = _bound(host, port)
        name = socket.gethostname() if every else host
        shown = f"[{name}]" if ":" in name else name
        self.address = f"http://{shown}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            self.app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=STOP
        )
        self._server = uvicorn.Server(config)

    @property
    def url(self) -> str:
        """What to open, with the token where one is wanted, and at a view where one was chosen."""
        token = f"?token={quote(self.token)}" if self.token else ""
        return f"{self.address}/{token}" + (f"#view={self.view}" if self.view else "")

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Answer until interrupted; `ready` is called once the first request would be answered."""
        if ready is not None:
            threading.Thread(target=self._tell, args=(ready,), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            self._server.run(sockets=[self._socket])

    def _tell(self, ready: Callable[[], None]) -> None:
        while not self._server.started:
            if self._server.should_exit:
                return
            time.sleep(0.02)
        ready()

    def open(self) -> None:
        """In the person's browser, where there is one."""
        webbrowser.open(self.url)

    def stop(self) -> None:
        self._server.should_exit = True


@contextlib.contextmanager
def serving(library: Library) -> Iterator[Server]:
    """A server in a thread of its own while the block runs."""
    server = Server(library)
    started = threading.Event()
    thread = threading.Thread(target=server.run, args=(started.set,), daemon=True)
    thread.start()
    try:
        if not started.wait(30):
            raise OSError(f"the server at {server.address} did not start within 30 seconds")
        yield server
    finally:
        server.stop()
        thread.join(STOP + 5)


def loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host.lower() == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(where)
        found.listen(2048)
    except OSError as error:
        raise ValueError(
            f"cannot listen at {host}, port {port}: {error.strerror or error}; choose another --port, or none"
        ) from None
    return found
