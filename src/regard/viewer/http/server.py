"""Web servers on the loopback address or on another one, whose requests need a token: the viewer's, and its base."""

from __future__ import annotations

import contextlib
import html
import ipaddress
import secrets
import socket
import tempfile
import threading
import time
import webbrowser
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

import uvicorn

from . import connection_timeouts
from .application import create_app
from .guard import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastapi import FastAPI

    from ..data.library import Library

AnyServer = TypeVar("AnyServer", bound="AppServer")
REDIRECT = (
    '<!doctype html><meta charset="utf-8"><title>regard</title><meta http-equiv="refresh" content="0; url={url}">'
    '<a href="{url}">Open the viewer</a>\n'
)
SHUTDOWN = 2
"""Seconds that open requests get when the server stops."""


class AppServer:
    """Serves an application: binds its socket at once, so that its address is known; answers once `run` is called.

    `make_app` gets the names that a Host header may have, the token and the port. With `token` True a new one is made.
    """

    def __init__(
        self,
        make_app: Callable[[frozenset[str], str | None, int], FastAPI],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: bool | str = True,
    ) -> None:
        if not token and not loopback(host):
            raise ValueError(f"without a token everybody who can reach {host} could use it; leave out --no-token")
        self.token = token if isinstance(token, str) else secrets.token_urlsafe(24) if token else None
        any_address = host in ("0.0.0.0", "::")
        hosts = frozenset() if any_address else LOOPBACK | {host.lower(), f"[{host.lower()}]"}
        self._socket = _listen(host, port)
        self.app = make_app(hosts, self.token, self._socket.getsockname()[1])
        name = socket.gethostname() if any_address else host
        name = f"[{name}]" if ":" in name else name  # IPv6
        self.address = f"http://{name}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            self.app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN,
            **connection_timeouts.options(),
        )
        self._server = uvicorn.Server(config)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that a program sends with its requests."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until interrupted; `ready` is called once requests are accepted."""
        if ready is not None:
            threading.Thread(target=self._call_when_started, args=(ready,), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            self._server.run(sockets=[self._socket])

    def _call_when_started(self, ready: Callable[[], None]) -> None:
        while not self._server.started:
            if self._server.should_exit:
                return
            time.sleep(0.02)
        ready()

    def stop(self) -> None:
        self._server.should_exit = True


class Server(AppServer):
    """The viewer's."""

    def __init__(
        self, library: Library, host: str = "127.0.0.1", port: int = 0, view: str = "", *, token: bool = True
    ) -> None:
        self.view = view  # the view that the page opens; "": the page chooses
        self._opening: tempfile.TemporaryDirectory[str] | None = None
        super().__init__(partial(create_app, library), host, port, token=token)

    @property
    def url(self) -> str:
        """The address to open: with the token, where there is one, and the view, where one was chosen."""
        query = f"?token={quote(self.token)}" if self.token else ""
        return f"{self.address}/{query}" + (f"#view={self.view}" if self.view else "")

    def run(self, ready: Callable[[], None] | None = None) -> None:
        try:
            super().run(ready)
        finally:
            if self._opening is not None:
                self._opening.cleanup()

    def open(self) -> None:
        """Open the page in the default browser.

        Other users can read the command line of the browser. So it opens a file, in a folder that only this user can
        read, which leads to the page with its token. The file is removed when the server stops.
        """
        address = self.url
        if self.token is not None:
            self._opening = tempfile.TemporaryDirectory(prefix="regard-")
            page = Path(self._opening.name, "open.html")
            page.write_text(REDIRECT.format(url=html.escape(self.url)), encoding="utf-8")
            address = page.as_uri()
        webbrowser.open(address)


@contextlib.contextmanager
def serving(library: Library, *, token: bool = True) -> Iterator[Server]:
    """Run a viewer's server in a thread of its own while the block runs. `server.headers` carry its token."""
    with running(Server(library, token=token)) as server:
        yield server


@contextlib.contextmanager
def running(server: AnyServer) -> Iterator[AnyServer]:
    """Run a server in a thread of its own while the block runs."""
    started = threading.Event()
    thread = threading.Thread(target=server.run, args=(started.set,), daemon=True)
    thread.start()
    try:
        if not started.wait(30):
            raise OSError(f"the server at {server.address} did not start within 30 seconds")
        yield server
    finally:
        server.stop()
        thread.join(SHUTDOWN + 5)


def loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        raise ValueError(
            f"cannot listen at {host}, port {port}: {error.strerror or error}; choose another --port, or leave it out"
        ) from None
    return listener
