"""Additions to uvicorn: limits of connections and of the time and size of a head, answers to
HTTP/1.0 without chunks, and to clients that have closed their side.

Without the limits, a client that never ends its requests holds connections for ever, at no cost to
itself.
"""

import asyncio

from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from smartspec.server.http.upgrades import UpgradesIgnored

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: "
    b"0\r\n\r\n"
)


class LimitedConnection(UpgradesIgnored):
    """One connection. Beyond max_connections, one that is not being answered is closed: the one
    whose last request began longest ago.

    A head of more than max_head_bytes is answered 431. A connection is closed when a head is not
    there head_seconds after its first byte (or after connecting), or a body body_seconds after its
    head. The time between two requests is uvicorn's timeout_keep_alive.

    A client that closes its side within half_close_seconds after its request gets its answer, as it
    may have closed that side alone. Nothing tells which until something is written. One that does
    so later has left.
    """

    max_connections = 2048
    max_head_bytes = 2**16
    head_seconds = 10.0
    body_seconds = 60.0
    half_close_seconds = 0.25

    _deadline: asyncio.TimerHandle | None = None  # set while a request is arriving
    _in_head = False
    _num_head_bytes = 0
    _began = 0.0
    _ended = 0.0  # when the last request was there

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._expect(self.head_seconds)
        self._began = self.loop.time()
        if len(self.connections) > self.max_connections:
            spare = [other for other in self.connections if other._is_spare]
            min(spare, key=lambda other: other._began).transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._expect(None)
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._expect(self.head_seconds)
            self._began = self.loop.time()
        super().data_received(data)
        if self._in_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > self.max_head_bytes:
                self._refuse_head()

    def on_message_begin(self) -> None:
        self._in_head, self._num_head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if (
            len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            > self.max_head_bytes
        ):
            self._refuse_head()  # it came in one piece with its end
            return
        if self.has_offer:
            return
        self._expect(self.body_seconds)
        is_old = self.parser.get_http_version() == "1.0"
        self.expect_100_continue &= not is_old
        super().on_headers_complete()
        if is_old:
            self.cycle.send = _UntilClosed(self.cycle)

    def on_message_complete(self) -> None:
        if self.has_offer:
            return
        self._expect(None)
        self._ended = self.loop.time()
        super().on_message_complete()

    def eof_received(self) -> bool:
        """True if the connection stays open for the answers that are due."""
        if self._is_spare or self.loop.time() - self._ended > self.half_close_seconds:
            return False
        self.cycle.keep_alive = False  # of the last request: it is answered after those before it
        return True

    def _refuse_head(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    @property
    def _is_spare(self) -> bool:
        """True if no request on it is being answered."""
        return self._deadline is not None or self.cycle is None or self.cycle.response_complete

    def _expect(self, seconds: float | None) -> None:
        """The rest of the head or of the body within so many seconds; None: it is there."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        if self.flow.read_paused:  # our doing: a request before this one is still being answered
            self._expect(self.head_seconds)
        else:
            self.transport.close()


class _UntilClosed:
    """Takes the place of uvicorn's send for HTTP/1.0, which knows no chunks: an answer of unknown
    length ends with the connection (RFC 9112, 6.1 and 6.3). uvicorn compares lengths, so it is told
    that of each piece."""

    def __init__(self, cycle: RequestResponseCycle):
        self._cycle = cycle
        self._send = cycle.send
        self._has_length = True

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_length = any(
                name.lower() == b"content-length" for name, _ in message.get("headers", ())
            )
            self._cycle.chunked_encoding = None if self._has_length else False
        elif not self._has_length:
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)
