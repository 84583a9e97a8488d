"""Every failure as an answer: {"error": {"message", "type", "param", "code"}} in OpenAI's shape; in
Anthropic's, for its paths, {"type": "error", "error": {"type", "message"}, "request_id"}."""

from collections.abc import Callable, Mapping

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from smartspec.engine.runtime.async_engine import EngineError, EngineStopped, NoTokenLeft, QueueFull

RETRY_AFTER_SECONDS = 1
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
ANTHROPIC_PATHS = "/v1/messages"
ANTHROPIC_TYPES = TYPES | {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}


class APIError(Exception):
    """A refusal the caller can act on. status: HTTP status. param: the parameter at fault. code:
    for programs. headers: of the answer."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers


def error_response(error: Exception, scope: Scope) -> JSONResponse:
    """The answer to any exception of this request; what is not meant for the caller is a plain
    500."""
    refusal = as_refusal(error)
    return JSONResponse(error_body(refusal, scope), refusal.status, refusal.headers)


def error_body(error: APIError, scope: Scope) -> dict:
    """The JSON object of an error."""
    kinds = ANTHROPIC_TYPES if is_anthropic(scope) else TYPES
    said = {"message": error.message, "type": kinds.get(error.status, "invalid_request_error")}
    if not is_anthropic(scope):
        return {"error": said | {"param": error.param, "code": error.code}}
    # as request_ids.RequestIds has named the request
    request_id = scope.get("state", {}).get("request_id")
    return {"type": "error", "error": said, "request_id": request_id}


def is_anthropic(scope: Scope) -> bool:
    """True if a request is one to Anthropic's interface."""
    path = scope["path"]
    return path == ANTHROPIC_PATHS or path.startswith(f"{ANTHROPIC_PATHS}/")


def as_refusal(error: Exception) -> APIError:
    """What the caller is told of any exception."""
    later = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    match error:
        case APIError():
            return error
        case QueueFull():
            return APIError(429, f"{error}: try again later", code="queue_full", headers=later)
        case EngineStopped():
            return APIError(503, str(error), code="engine_stopped", headers=later)
        case NoTokenLeft():
            return APIError(400, str(error), code="invalid_value")
        case EngineError():
            return APIError(500, str(error), code="engine_error")
    return APIError(500, "internal error; the server's log has the details", code="internal_error")


class HeadCheck:
    """ASGI middleware: a request whose head the check refuses is answered with its error, before
    the body is read."""

    def __init__(self, app: ASGIApp, check: Callable[[Scope], None]):
        self._app, self._check = app, check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope)
            except APIError as error:
                return await error_response(error, scope)(scope, receive, send)
        await self._app(scope, receive, send)


def install_error_handlers(app: FastAPI) -> None:
    """Answer all exceptions of the application with error_response."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException):  # of the router
            error = APIError(error.status_code, _no_route(request, error), headers=error.headers)
        return error_response(error, request.scope)

    for kind in (APIError, HTTPException, QueueFull, EngineError, Exception):
        app.add_exception_handler(kind, answer)


def _no_route(request: Request, error: HTTPException) -> str:
    if error.status_code == 404:
        return f"there is no {request.url.path} here"
    return f"{request.url.path} does not take {request.method} requests"
