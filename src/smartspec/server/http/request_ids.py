"""A name for every request, which its answer carries: the client's own, if it sent one."""

import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from smartspec.server.http.errors import is_anthropic

HEADER = b"x-request-id"
ANTHROPIC_HEADER = b"request-id"
ACCEPTED = re.compile(rb"[\w.:-]{1,128}")


class RequestIds:
    """ASGI middleware: X-Request-Id in every answer, request-id too where Anthropic's client reads
    it. What runs inside finds the name in its request's state."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = dict(scope["headers"]).get(HEADER, b"")
        request_id = given if ACCEPTED.fullmatch(given) else uuid.uuid4().hex.encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        headers = [(HEADER, request_id)] + [(ANTHROPIC_HEADER, request_id)] * is_anthropic(scope)

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await self._app(scope, receive, send_named)
