"""One line for every answered request, and a count of answers by status."""

import logging
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("smartspec.access")

MAX_CHARACTERS = 200  # of an address or a path
# any client can send bad requests, and must not fill the disk with log lines
BAD_LINES_PER_SECOND = 10


class AccessLog:
    """ASGI middleware. count: called with the status of every answer. log: whether lines are
    written.

    Of requests that were answered with an error at most BAD_LINES_PER_SECOND are written; the next
    line says how many were not. A request whose client left before an answer has status 499, as in
    nginx.
    """

    def __init__(
        self,
        app: ASGIApp,
        count: Callable[[int], None],
        log: bool,
        clock: Callable[[], float] = time.time,
    ):
        self._app = app
        self._count = count
        self._log = log
        self._clock = clock
        self._second = 0
        self._num_bad = 0
        self._num_left_out = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status = time.perf_counter(), 499

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        finally:
            self._count(status)
            if self._log and self._has_room(status):
                self._write(scope, status, time.perf_counter() - began)

    def _has_room(self, status: int) -> bool:
        if status < 400:
            return True
        second = int(self._clock())
        if second != self._second:
            self._second, self._num_bad = second, 0
        self._num_bad += 1
        if self._num_bad > BAD_LINES_PER_SECOND:
            self._num_left_out += 1
            return False
        return True

    def _write(self, scope: Scope, status: int, seconds: float) -> None:
        fields = {
            "client": _shown(scope["client"][0]) if scope["client"] else "-",
            "method": scope["method"],
            "path": _shown(scope["path"]),
            "status": status,
            "milliseconds": round(1000 * seconds, 1),
        }
        text = " ".join(map(str, fields.values())) + " ms"
        if self._num_left_out:
            fields["left_out"] = self._num_left_out
            text += f" ({self._num_left_out} lines of bad requests before it left out)"
            self._num_left_out = 0
        logger.info(text, extra={"fields": fields})


def _shown(text: str) -> str:
    """A client's text as one word of printable ASCII, so that it can neither forge log lines nor
    control a terminal. An address may come from X-Forwarded-For, which may be anything."""
    return text[:MAX_CHARACTERS].encode("unicode_escape").decode().replace(" ", "\\x20")
