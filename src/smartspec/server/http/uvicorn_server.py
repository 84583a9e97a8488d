"""uvicorn around the application: its options, and how it ends."""

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.server.http.connections import LimitedConnection

# Between two requests of a connection. A client that sends one in the very moment it is closed sees
# an error, the more often the busier the server is; at uvicorn's 5 seconds a closed-loop benchmark
# met it within a minute.
KEEP_ALIVE_SECONDS = 75
SHUTDOWN_SECONDS = 2  # for what was answered to reach its clients
POLL_SECONDS = 0.05


class HttpServer(uvicorn.Server):
    """Serves until a signal. Ctrl-C ends the requests under way at once.

    SIGTERM drains: the server is no longer ready and refuses new requests. Requests under way may
    finish within drain_seconds; then they are ended. Another signal ends them at once. on_ready is
    called when the server is up.
    """

    def __init__(
        self,
        app: FastAPI,
        engine: AsyncEngine,
        *,
        drain_seconds: float = 0.0,
        on_ready: Callable[[], None] = lambda: None,
        connection: type[LimitedConnection] = LimitedConnection,
    ):
        config = uvicorn.Config(
            app,
            http=connection,
            ws="none",
            log_config=None,
            # lower levels log single bad requests, and any client can send many of these
            log_level="error",
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        super().__init__(config)
        self._engine = engine
        self._drain_seconds = drain_seconds
        self._on_ready = on_ready
        self._drains = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._drains = sig == signal.SIGTERM and not self.should_exit
        self._engine.accepts_requests = False
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ends = time.monotonic() + self._drain_seconds
        while self._drains and self._engine.num_requests and time.monotonic() < ends:
            await asyncio.sleep(POLL_SECONDS)
        await self._engine.stop()  # uvicorn waits for connections, and those wait for the engine
        await super().shutdown(sockets)
