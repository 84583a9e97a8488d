"""The HTTP application: which path does what."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from smartspec.control.policy_names import parse_policy
from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.server.body import MAX_BODY_BYTES, RequestBody
from smartspec.server.errors import APIError, install_error_handlers
from smartspec.server.formats import ChatFormat, CompletionFormat
from smartspec.server.metrics import ServerMetrics
from smartspec.server.prompts import PromptReader
from smartspec.server.protocol import ChatBody, CompletionBody, SpeculationBody, parse_body
from smartspec.server.streaming import Call, answer

DEFAULT_COMPLETION_TOKENS = 16
METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_app(
    engine: AsyncEngine,
    tokenizer,
    model_name: str,
    *,
    policy: str,
    drafters: tuple[str, ...] = (),
    kernels: dict[str, str] | None = None,
    api_key: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> FastAPI:
    """An OpenAI-compatible application around an engine, which it starts and stops.

    tokenizer: a transformers tokenizer. policy: the name of the engine's. kernels: what computes, see
    engine.kernel_report. api_key: if given, /v1/... needs it as a bearer token.
    """
    metrics = ServerMetrics(engine.core)
    engine.listeners.append(metrics.observe_step)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await engine.stop()

    app = FastAPI(title="SmartSpec", lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    app.add_middleware(RequestBody, max_bytes=max_body_bytes)
    install_error_handlers(app)
    app.include_router(_service_routes(engine, metrics))
    needs_key = [Depends(_key_check(api_key))] if api_key else []
    generation = _generation_routes(engine, tokenizer, model_name, policy, metrics)
    app.include_router(generation, prefix="/v1", dependencies=needs_key)
    shown = {"drafters": list(drafters), "kernels": kernels or {}}
    app.include_router(_information_routes(engine, model_name, shown), prefix="/v1", dependencies=needs_key)
    return app


def _generation_routes(
    engine: AsyncEngine, tokenizer, model_name: str, policy: str, metrics: ServerMetrics
) -> APIRouter:
    router = APIRouter()
    reader = PromptReader(tokenizer, engine)

    @router.post("/completions")
    async def completions(request: Request) -> Response:
        body = parse_body(CompletionBody, await request.body())
        check_model(body.model, model_name)
        check_tpot_target(body.speculation, policy)
        prompts = await reader.read_completion(body)
        max_tokens = reader.max_tokens(body, body.max_tokens, DEFAULT_COMPLETION_TOKENS, prompts)
        params = body.sampling_params(max_tokens, body.logprobs)
        call = Call(model_name, prompts, params, body.n, body.stream, body.include_usage, body.speculation_options)
        return await answer(call, CompletionFormat(show_top=bool(body.logprobs)), engine, metrics)

    @router.post("/chat/completions")
    async def chat_completions(request: Request) -> Response:
        body = parse_body(ChatBody, await request.body())
        check_model(body.model, model_name)
        check_tpot_target(body.speculation, policy)
        prompts = [await reader.read_chat(body)]
        asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        max_tokens = reader.max_tokens(body, asked, None, prompts)
        params = body.sampling_params(max_tokens, (body.top_logprobs or 0) if body.logprobs else None)
        call = Call(model_name, prompts, params, body.n, body.stream, body.include_usage, body.speculation_options)
        return await answer(call, ChatFormat(), engine, metrics)

    return router


def _information_routes(engine: AsyncEngine, model_name: str, shown: dict) -> APIRouter:
    """shown: what `/v1/speculation` says besides the controller's state."""
    router = APIRouter()
    model = {"id": model_name, "object": "model", "created": 0, "owned_by": "smartspec"}
    model["max_model_len"] = engine.max_model_len

    @router.get("/models")
    async def models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [model]})

    @router.get("/models/{name:path}")
    async def one_model(name: str) -> JSONResponse:
        check_model(name, model_name)
        return JSONResponse(model)

    @router.get("/speculation")
    async def speculation() -> JSONResponse:
        state = await engine.call(engine.core.controller.state)
        return JSONResponse({"model": model_name} | state | shown)

    return router


def _service_routes(engine: AsyncEngine, metrics: ServerMetrics) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health() -> JSONResponse:
        if not engine.alive:
            raise APIError(503, "the engine has stopped", code="engine_stopped")
        return JSONResponse({"status": "ok"})

    @router.get("/metrics")
    async def prometheus() -> Response:
        return Response(metrics.to_text(), media_type=METRICS_MEDIA_TYPE)

    return router


def check_tpot_target(speculation: SpeculationBody | None, policy: str) -> None:
    """Raises APIError 400 if there is a target that the policy would not read."""
    asked = None if speculation is None else speculation.tpot_target_ms
    if asked is not None and not parse_policy(policy).reads_tpot_targets:
        raise APIError(
            400,
            f"tpot_target_ms is {asked:g}, but policy {policy!r} of this server reads no targets: leave it out, or "
            "start the server with --policy adaserve",
            "speculation.tpot_target_ms",
            "unsupported_value",
        )


def check_model(asked: str | None, served: str) -> None:
    """Raises APIError 404 unless the served model, or none in particular, is asked for."""
    if asked is not None and asked != served:
        raise APIError(
            404, f"there is no model {asked!r} here; this server runs {served!r}", "model", "model_not_found"
        )


def _key_check(api_key: str):
    expected = f"Bearer {api_key}".encode()

    async def check(request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if not secrets.compare_digest(given, expected):
            raise APIError(
                401, "wrong or missing API key: send it as 'Authorization: Bearer KEY'", None, "invalid_api_key"
            )

    return check
