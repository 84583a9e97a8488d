"""A call of the engine, and its answer over HTTP: server-sent events, or one JSON object."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from fastapi.responses import JSONResponse, Response
from starlette.types import Scope

from smartspec.core.grammar import Grammar
from smartspec.core.origin import Origin
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.speculation import SpeculationOptions
from smartspec.engine.runtime.async_engine import AsyncEngine, EngineError
from smartspec.engine.text.stream import TextDelta
from smartspec.server.http.errors import APIError, as_refusal, error_body
from smartspec.server.http.event_stream import EventStream
from smartspec.server.live.metrics import ServerMetrics
from smartspec.server.openai.deltas import merge
from smartspec.server.openai.generation_body import GenerationBody
from smartspec.server.openai.said import PLAIN_TEXT, Reading

# Of a route, for the document: its answer may be streamed.
STREAMED = {200: {"content": {"text/event-stream": {}}}}


@dataclass(frozen=True)
class RequestedGrammar:
    """field: of the body. definition: as GrammarCompiler takes it."""

    field: str
    definition: str


@dataclass(frozen=True)
class Call:
    """A request that is ready for the engine. model: its name in the answer. body: of a completion
    or a chat, whatever the endpoint. prompts: token ids. headers: of the answer. requested_grammar:
    before it is compiled. reading: what the text of a chat is read for."""

    model: str
    body: GenerationBody
    prompts: list[list[int]]
    params: SamplingParams
    speculation: SpeculationOptions
    origin: Origin
    headers: Mapping[str, str]
    requested_grammar: RequestedGrammar | None
    grammar: Grammar | None = None
    reading: Reading = PLAIN_TEXT


class Format(Protocol):
    """The form of an endpoint's answers; an object serves one call."""

    def whole(self, choices: Mapping[int, TextDelta]) -> dict:
        """The answer that is not streamed. choices: all deltas of each as one, in order."""

    def push(self, delta: TextDelta) -> Iterator[bytes]:
        """The events of a piece of a streamed answer."""

    def end(self) -> Iterator[bytes]:
        """The events at the end of a streamed answer."""

    def failed(self, error: dict) -> bytes:
        """The last event of a streamed answer that failed. error: as the body of an answer."""


async def answer(
    call: Call, form: Format, engine: AsyncEngine, metrics: ServerMetrics, scope: Scope
) -> Response:
    """Generate and answer; the first text decides about the status. scope: of the request. Raises
    APIError, QueueFull or EngineError for what went wrong before."""
    deltas = engine.generate(
        call.prompts, call.params, call.body.n, call.speculation, call.origin, call.grammar
    )
    deltas = metrics.observe_call(deltas, len(call.prompts), call.body.n, call.speculation)
    try:
        first = await anext(deltas)
    except ValueError as error:
        raise APIError(400, str(error), code="invalid_value") from error
    deltas = _put_back(first, deltas)
    if call.body.stream:
        return EventStream(_events(form, deltas, scope), call.headers)
    choices = await _gathered(deltas)
    if call.params.prompt_logprobs is None:
        body = form.whole(choices)
    else:
        body = await asyncio.to_thread(form.whole, choices)  # it may be long
    return JSONResponse(body, headers=call.headers)


async def _put_back(first: TextDelta, rest: AsyncIterator[TextDelta]) -> AsyncIterator[TextDelta]:
    async with aclosing(rest):
        yield first
        async for delta in rest:
            yield delta


async def _gathered(deltas: AsyncIterator[TextDelta]) -> dict[int, TextDelta]:
    by_choice: dict[int, list[TextDelta]] = {}
    async with aclosing(deltas):
        async for delta in deltas:
            by_choice.setdefault(delta.index, []).append(delta)
    return {index: merge(by_choice[index]) for index in sorted(by_choice)}


async def _events(
    form: Format, deltas: AsyncIterator[TextDelta], scope: Scope
) -> AsyncIterator[bytes]:
    try:
        async with aclosing(deltas):
            async for delta in deltas:
                for event in form.push(delta):
                    yield event
    except EngineError as error:
        yield form.failed(error_body(as_refusal(error), scope))
        return
    for event in form.end():
        yield event
