"""Server-sent events."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class EventStream(StreamingResponse):
    """Server-sent events. When the response ends, for any reason, the source of the events is
    closed. Proxies are told to pass each on as it comes: nginx would gather them."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], headers: Mapping[str, str] | None = None):
        passed_on = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=passed_on | dict(headers or {}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.body_iterator):
            await self.stream_response(send)


def event(data: dict) -> bytes:
    """An event without a name."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def named_event(data: dict) -> bytes:
    """An event with the name of its type."""
    return f"event: {data['type']}\n".encode() + event(data)
