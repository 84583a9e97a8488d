"""POST /v1/messages and /v1/messages/count_tokens."""

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.server.anthropic.answer import answer_message
from smartspec.server.anthropic.body import MessagesBody, PromptBody
from smartspec.server.http.errors import request_id_of
from smartspec.server.live.metrics import ServerMetrics
from smartspec.server.openai.calls import CallReader
from smartspec.server.openai.streaming import STREAMED


def message_routes(reader: CallReader, engine: AsyncEngine, metrics: ServerMetrics) -> APIRouter:
    router = APIRouter()

    @router.post("/messages", responses=STREAMED)
    async def messages(request: Request) -> Response:
        data = await request.body()
        call, _ = await asyncio.to_thread(
            reader.converted, MessagesBody, data, request.state.origin
        )
        return await answer_message(
            await reader.with_grammar(call), engine, metrics, request_id_of(request.scope)
        )

    @router.post("/messages/count_tokens")
    async def count_tokens(request: Request) -> JSONResponse:
        data = await request.body()
        call, _ = await asyncio.to_thread(reader.converted, PromptBody, data, request.state.origin)
        return JSONResponse({"input_tokens": len(call.prompts[0])})

    return router
