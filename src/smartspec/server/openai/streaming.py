"""Answers a call over HTTP: its deltas become server-sent events or one JSON object."""

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from smartspec.core.grammar import Grammar
from smartspec.core.origin import UNKNOWN_ORIGIN, Origin
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.speculation import NO_OPTIONS, SpeculationOptions
from smartspec.engine.runtime.async_engine import AsyncEngine, EngineError
from smartspec.engine.text.stream import TextDelta
from smartspec.server.http.errors import APIError, describe
from smartspec.server.live.metrics import ServerMetrics
from smartspec.server.openai.formats import Format, ScoredPrompt, merge, usage
from smartspec.server.openai.prompt_logprobs import prompt_json
from smartspec.server.openai.said import PLAIN_TEXT, Reading

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RequestedGrammar:
    """field: of the body. definition: as GrammarCompiler takes it."""

    field: str
    definition: str


@dataclass(frozen=True)
class Call:
    """A request to any endpoint, ready for the engine. prompts: token ids. report: choices tell
    which parts of their text were accepted draft tokens. grammar: requested_grammar, compiled.
    decode: the text of token ids. prompt_logprobs: how many alternatives to list for each token of
    the prompts, None for no list. reading: what the text of a chat is read for. headers: of the
    answer."""

    model: str
    prompts: list[list[int]]
    params: SamplingParams
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool = False
    request_id: str | None = None
    report: bool = False
    speculation: SpeculationOptions = NO_OPTIONS
    origin: Origin = UNKNOWN_ORIGIN
    requested_grammar: RequestedGrammar | None = None
    grammar: Grammar | None = None
    decode: Callable[[list[int]], str] = str
    prompt_logprobs: int | None = None
    reading: Reading = PLAIN_TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


# Of a route, for the document: its answer may be streamed.
STREAMED = {200: {"content": {"text/event-stream": {}}}}


class EventStream(Response):
    """Server-sent events. When the response ends, for any reason, the source of the events is
    closed. Proxies are told to pass each on as it comes: nginx would gather them."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], headers: Mapping[str, str] | None = None):
        super().__init__(
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})}
        )
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def answer(call: Call, form: Format, engine: AsyncEngine, metrics: ServerMetrics) -> Response:
    """Generate and answer. Raises as begin."""
    deltas = await begin(call, engine, metrics)
    answer_id = f"{form.id_prefix}-{call.request_id or uuid.uuid4().hex}"
    head = {"id": answer_id, "created": int(time.time()), "model": call.model}
    if call.stream:
        return EventStream(_events(call, form, head, deltas), call.headers)
    by_choice = await _gathered(deltas)
    if call.params.prompt_logprobs is None:
        return _whole(call, form, head, by_choice)
    return await asyncio.to_thread(_whole, call, form, head, by_choice)  # it may be long


async def begin(
    call: Call, engine: AsyncEngine, metrics: ServerMetrics
) -> AsyncIterator[TextDelta]:
    """Generate, and wait for the first text. Raises APIError, QueueFull or EngineError for what
    went wrong before."""
    deltas = engine.generate(
        call.prompts, call.params, call.n, call.speculation, call.origin, call.grammar
    )
    deltas = metrics.observe_call(deltas, len(call.prompts), call.n, call.speculation)
    try:
        first = await anext(deltas)
    except ValueError as error:
        raise APIError(400, str(error), code="invalid_value") from error
    return _put_back(first, deltas)


async def _put_back(first: TextDelta, rest: AsyncIterator[TextDelta]) -> AsyncIterator[TextDelta]:
    async with aclosing(rest):
        yield first
        async for delta in rest:
            yield delta


async def _gathered(deltas: AsyncIterator[TextDelta]) -> dict[int, list[TextDelta]]:
    by_choice: dict[int, list[TextDelta]] = {}
    async with aclosing(deltas):
        async for delta in deltas:
            by_choice.setdefault(delta.index, []).append(delta)
    return by_choice


def _whole(
    call: Call, form: Format, head: dict, by_choice: dict[int, list[TextDelta]]
) -> JSONResponse:
    merged = {index: merge(by_choice[index]) for index in sorted(by_choice)}
    choices = [form.whole_choice(delta) | _report(call, delta) for delta in merged.values()]
    body = head | {"object": form.whole_object, "choices": choices, "usage": usage(merged, call.n)}
    if call.params.prompt_logprobs is not None:
        prompts = [
            _scored(call, number, merged[number * call.n]) for number in range(len(call.prompts))
        ]
        body |= form.place_prompts(choices, [prompts[index // call.n] for index in merged])
    return JSONResponse(body, headers=call.headers)


def _scored(call: Call, number: int, first: TextDelta) -> ScoredPrompt:
    """A prompt of the call; first: its first choice."""
    token_ids, found = call.prompts[number], first.prompt_logprobs or ()
    wanted = call.prompt_logprobs
    return ScoredPrompt(
        token_ids,
        found,
        None if wanted is None else prompt_json(token_ids, found, wanted, call.decode),
    )


async def _events(
    call: Call, form: Format, head: dict, deltas: AsyncIterator[TextDelta]
) -> AsyncIterator[bytes]:
    head = head | {"object": form.chunk_object}
    no_usage = {"usage": None} if call.include_usage else {}
    last: dict[int, TextDelta] = {}
    try:
        async with aclosing(deltas):
            async for delta in deltas:
                is_new = delta.index not in last
                last[delta.index] = delta
                if is_new or delta.text or delta.logprobs or delta.finish_reason:
                    counts = {"usage": usage(last, call.n)} if call.continuous_usage else no_usage
                    yield _event(
                        head
                        | {"choices": [form.chunk_choice(delta) | _report(call, delta)]}
                        | counts
                    )
    except EngineError as error:
        _, body, _ = describe(error)
        yield _event(body)
        return
    if call.include_usage:
        yield _event(head | {"choices": [], "usage": usage(last, call.n)})
    yield b"data: [DONE]\n\n"


def _report(call: Call, delta: TextDelta) -> dict:
    if not call.report:
        return {}
    pieces = [{"text": text, "accepted": accepted} for text, accepted in delta.pieces]
    return {"speculation": {"request": delta.request_number, "pieces": pieces}}


def _event(data: dict) -> bytes:
    return (
        b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    )
