"""The HTTP application: which path does what."""

import asyncio
import importlib.metadata
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.middleware.cors import CORSMiddleware

from smartspec.core.lab_tables import lab_table
from smartspec.core.origin import Origin
from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.server.anthropic.answer import MessageFormat
from smartspec.server.anthropic.body import MessagesBody, PromptBody
from smartspec.server.http.access_log import AccessLog
from smartspec.server.http.body import RequestBody
from smartspec.server.http.browsers import BrowserCheck
from smartspec.server.http.errors import APIError, HeadCheck, install_error_handlers
from smartspec.server.http.event_stream import EventStream
from smartspec.server.http.keys import OPEN_PATHS, ApiKeys
from smartspec.server.http.parsing import BodyParser
from smartspec.server.http.request_ids import RequestIds
from smartspec.server.live.feed import LiveFeed
from smartspec.server.live.metrics import ServerMetrics
from smartspec.server.live.page import FILES, page_routes
from smartspec.server.openai.calls import CLIPPED_HEADER, CallReader, check_model
from smartspec.server.openai.prompts import PromptReader
from smartspec.server.openai.responses import ResponseFormat
from smartspec.server.openai.responses_body import ResponsesBody
from smartspec.server.openai.streaming import STREAMED, Call, Format, answer
from smartspec.server.openai.workload_classes import WorkloadClasses
from smartspec.server.openapi import add_document
from smartspec.server.structured.grammars import GrammarCompiler

METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# How clients may send a key, for the document: http.keys checks it.
KEY_HEADERS = (HTTPBearer(auto_error=False), APIKeyHeader(name="x-api-key", auto_error=False))
REFUSED = {"default": {"description": "Refused, with the reason as `error`"}}


@dataclass(frozen=True)
class About:
    """Facts about the engine that the server reports."""

    names: tuple[str, ...]  # under which the model is served; the first is in answers and metrics
    # policy, drafters: their names
    policy: str
    drafters: tuple[str, ...] = ()
    kernels: dict[str, str] = field(default_factory=dict)  # see engine.kernel_report
    # of an engine whose text is invalid, see engine.sampling.forced_acceptance
    forced_acceptance: float | None = None

    @property
    def model(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class AppOptions:
    """Options that an operator chooses."""

    keys: ApiKeys = field(default_factory=ApiKeys)  # who may use it, by default all
    strict_fields: bool = False  # bodies with anything that this server does not know are refused
    has_page: bool = True  # whether `/` shows what the server does
    # what is said of requests by their workload class
    classes: WorkloadClasses = field(default_factory=WorkloadClasses)
    access_log: bool = False  # whether there is a line in the log for every request
    cors_origins: Sequence[str] = ()  # sites whose pages may call this server, `*` for all
    # names of the server, where browsers are not trusted (see http.browsers); None: whatever a
    # request calls it
    allowed_hosts: Sequence[str] | None = None
    # an engine of a smaller model with the same tokenizer, and its name; with it reasoning steps
    # can be speculated on (see lab.reasoning), which is lossy
    speculator: tuple[AsyncEngine, str] | None = None


def create_app(
    engine: AsyncEngine,
    tokenizer,
    compiler: GrammarCompiler,
    about: About,
    options: AppOptions,
) -> FastAPI:
    """An OpenAI-compatible application around an engine, which it starts and stops. tokenizer: a
    transformers tokenizer. compiler: of the grammars of structured output."""
    metrics = ServerMetrics(engine.core, about.model)
    engine.listeners.append(metrics.observe_step)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engines = {engine, *(options.speculator or ())[:1]}
        for each in engines:
            each.start()
        yield
        for each in engines:
            await each.stop()

    app = FastAPI(
        title="SmartSpec",
        version=importlib.metadata.version("smartspec"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(header) for header in KEY_HEADERS] if options.keys else [],
        responses=REFUSED,
    )
    app.add_middleware(RequestBody)
    # Keys are checked before the body is read. The page's files hold no user data: that comes from
    # paths with a key.
    open_paths = {*OPEN_PATHS, *FILES}
    app.add_middleware(HeadCheck, check=partial(options.keys.check, open_paths=open_paths))
    if options.allowed_hosts is not None:
        check = BrowserCheck(options.allowed_hosts, options.cors_origins)
        app.add_middleware(HeadCheck, check=check)
    app.add_middleware(AccessLog, count=metrics.observe_answer, log=options.access_log)
    # a browser's preflight request has no key, so CORS comes before the check of keys
    if options.cors_origins:
        allowed = {
            "allow_methods": ["*"],
            "allow_headers": ["*"],
            "expose_headers": ["X-Request-Id", CLIPPED_HEADER],
        }
        app.add_middleware(CORSMiddleware, allow_origins=list(options.cors_origins), **allowed)
    app.add_middleware(RequestIds)
    install_error_handlers(app)
    add_document(app)
    prompts = PromptReader(tokenizer, engine)
    is_text_invalid = about.forced_acceptance is not None
    parser = BodyParser(options.strict_fields, metrics.ignored_fields.count)
    reader = CallReader(
        prompts, engine, about.names, parser, options.classes, compiler, is_text_invalid
    )
    app.include_router(_routes_with_bodies(reader, engine, metrics))
    if options.speculator is not None:
        make_routes = lab_table("reasoning", "REASONING")["routes"]
        routes = make_routes(engine, options.speculator, about.names, prompts, tokenizer, parser)
        app.include_router(routes, prefix="/v1/reasoning")
    app.include_router(_routes_that_tell(engine, metrics, about))
    if options.has_page:
        app.include_router(page_routes())
    return app


def _routes_with_bodies(
    reader: CallReader, engine: AsyncEngine, metrics: ServerMetrics
) -> APIRouter:
    router = APIRouter()
    reads: dict[str, Callable[[bytes, Origin], tuple[Call, Format]]] = {
        "/v1/completions": reader.completion,
        "/v1/chat/completions": reader.chat,
        "/v1/responses": partial(reader.converted, ResponsesBody, ResponseFormat),
        "/v1/messages": partial(reader.converted, MessagesBody, MessageFormat),
    }

    async def generate(request: Request) -> Response:
        call, form = await _in_thread(request, reads[request.scope["path"]])
        call = await reader.with_grammar(call)
        return await answer(call, form, engine, metrics, request.scope)

    for path in reads:
        name = path.removeprefix("/v1/").replace("/", "_")
        router.add_api_route(path, generate, methods=["POST"], responses=STREAMED, name=name)

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> JSONResponse:
        call, _ = await _in_thread(request, partial(reader.converted, PromptBody, MessageFormat))
        return JSONResponse({"input_tokens": len(call.prompts[0])})

    @router.post("/tokenize")
    async def tokenize(request: Request) -> JSONResponse:
        return JSONResponse(await _in_thread(request, reader.tokenized))

    @router.post("/detokenize")
    async def detokenize(request: Request) -> JSONResponse:
        return JSONResponse(await _in_thread(request, reader.detokenized))

    return router


async def _in_thread(request: Request, read: Callable[[bytes, Origin], Any]) -> Any:
    """What a body is read as. Whatever takes longer the larger a body is runs in threads, so that
    it does not hold up the answers to others."""
    return await asyncio.to_thread(read, await request.body(), request.state.origin)


def _routes_that_tell(engine: AsyncEngine, metrics: ServerMetrics, about: About) -> APIRouter:
    router = APIRouter()
    feed = LiveFeed(engine, {"model": about.model, "policy": about.policy})
    facts = {
        "object": "model",
        "created": 0,
        "owned_by": "smartspec",
        "max_model_len": engine.max_model_len,
    }
    shown = {"drafters": list(about.drafters), "kernels": about.kernels}
    if about.forced_acceptance is not None:
        shown["forced_acceptance"] = about.forced_acceptance

    @router.get("/v1/models")
    async def models() -> JSONResponse:
        return JSONResponse(
            {"object": "list", "data": [{"id": name} | facts for name in about.names]}
        )

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> JSONResponse:
        check_model(name, about.names)
        return JSONResponse({"id": name} | facts)

    @router.get("/v1/speculation")
    async def speculation() -> JSONResponse:
        state = await engine.call(engine.core.controller.state)
        return JSONResponse({"model": about.model} | state | shown)

    @router.get("/v1/speculation/events", status_code=200, response_class=EventStream)
    async def events() -> Response:
        return EventStream(feed.events())

    @router.get("/live")
    @router.head("/live")
    async def live() -> JSONResponse:
        if not engine.alive:
            raise APIError(503, "the engine has stopped", code="engine_stopped")
        return JSONResponse({"status": "ok"})

    @router.get("/version")
    async def version() -> JSONResponse:
        return JSONResponse({"version": importlib.metadata.version("smartspec")})

    @router.get("/health")
    @router.head("/health")
    @router.get("/ping")
    @router.head("/ping")
    @router.post("/ping")
    async def health() -> JSONResponse:
        if not engine.accepts_requests:
            raise APIError(503, "the server is stopping", code="engine_stopped")
        return await live()

    @router.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> Response:
        return Response(metrics.to_text(), media_type=METRICS_MEDIA_TYPE)

    return router
