"""Checks of a request around the application: the size of its body, and whether its client has
disconnected."""

import asyncio
import zlib

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from smartspec.server.http.errors import APIError, error_response

MAX_BODY_BYTES = 8 * 2**20
MAX_DISCARDED_BYTES = 64 * 2**20


class RequestBody:
    """ASGI middleware: reads a body of at most MAX_BODY_BYTES, then runs the application until the
    client disconnects.

    A body may come gzipped. A larger one is answered 413. The bytes beyond that are read and
    thrown away: a client that is still sending would not see the answer. At most
    MAX_DISCARDED_BYTES are read like this. When the client disconnects, streaming or not, the
    application is cancelled. That ends the engine's work for it.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            body = await self._read(scope, receive)
        except APIError as error:
            response = error_response(error, scope)
            response.headers["Connection"] = "close"
            return await response(scope, receive, send)
        if body is not None:
            await self._run(body, scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None if the client left before its end. Raises APIError 413 if it is too
        large."""
        too_large = APIError(
            413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="body_too_large"
        )
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length", b"0")
        if (
            headers.get(b"expect", b"").lower() == b"100-continue"
            and announced.isdigit()
            and int(announced) > MAX_BODY_BYTES
        ):
            raise too_large  # the client waits for "100 Continue" and has sent nothing yet
        chunks, size = [], 0
        try:
            async for chunk in Request(scope, receive).stream():
                size += len(chunk)
                if size <= MAX_BODY_BYTES:
                    chunks.append(chunk)
                else:
                    chunks.clear()
                if size > MAX_BODY_BYTES + MAX_DISCARDED_BYTES:
                    break
        except ClientDisconnect:
            return None
        if size > MAX_BODY_BYTES:
            raise too_large
        body = b"".join(chunks)
        encoding = headers.get(b"content-encoding", b"identity").lower()
        if not body or encoding == b"identity":
            return body
        if encoding != b"gzip":
            raise APIError(
                415,
                "Content-Encoding of a body must be gzip, or left out",
                code="unsupported_encoding",
            )
        body = await asyncio.to_thread(_unzipped, body, MAX_BODY_BYTES)
        if body is None:
            raise too_large
        return body

    async def _run(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_disconnect(receive))
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            if messages:
                return messages.pop()
            await asyncio.wait({gone})
            return {"type": "http.disconnect"}

        application = asyncio.create_task(self._app(scope, receive_again, send))
        try:
            await asyncio.wait({application, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not application.done():
                application.cancel()
                await asyncio.wait({application})
        if not application.cancelled():
            application.result()


def _unzipped(data: bytes, max_bytes: int) -> bytes | None:
    """The unzipped data; None if there is more than max_bytes of it. Raises APIError 400 if it is
    not gzip."""
    unzip = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        body = unzip.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise APIError(
            400, f"the body is not gzip, as Content-Encoding says: {error}", code="invalid_gzip"
        ) from error
    if len(body) > max_bytes:
        return None
    if not unzip.eof:
        raise APIError(400, "the body ends in the middle of its gzip stream", code="invalid_gzip")
    return body


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
