"""Every failure as an answer: {"error": {"message", "type", "param", "code"}} in OpenAI's shape; in
Anthropic's, for its paths, {"type": "error", "error": {"type", "message"}, "request_id"}."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Scope

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
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


class APIError(Exception):
    """A refusal the caller can act on. status: HTTP status. param: the parameter at fault. code:
    for programs."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict:
    """The JSON object of an error."""
    error_type = TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}


def error_response(error: Exception, scope: Scope) -> JSONResponse:
    """The answer to any exception of this request; what is not meant for the caller is a plain
    500."""
    status, body, headers = describe(error)
    if is_anthropic(scope):
        body = anthropic_error(status, body, request_id_of(scope))
    return JSONResponse(body, status_code=status, headers=headers)


def anthropic_error(status: int, body: dict, request_id: str | None) -> dict:
    """The JSON object of an error in Anthropic's shape. body: in OpenAI's."""
    kind = ANTHROPIC_TYPES.get(status, "invalid_request_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": body["error"]["message"]},
        "request_id": request_id,
    }


def is_anthropic(scope: Scope) -> bool:
    """True if a request is one to Anthropic's interface."""
    path = scope["path"]
    return path == ANTHROPIC_PATHS or path.startswith(f"{ANTHROPIC_PATHS}/")


def request_id_of(scope: Scope) -> str | None:
    """The name that request_ids.RequestIds gave the request."""
    return scope.get("state", {}).get("request_id")


def describe(error: Exception) -> tuple[int, dict, dict[str, str]]:
    """Status, JSON object and headers of the answer to any exception."""
    headers: dict[str, str] = {}
    match error:
        case APIError():
            status, body = (
                error.status,
                error_body(error.status, error.message, error.param, error.code),
            )
            headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}  # RFC 9110, 15.5.2
        case HTTPException():
            status, body = error.status_code, error_body(error.status_code, str(error.detail))
            headers = dict(error.headers or {})
        case QueueFull():
            status, body = 429, error_body(429, f"{error}: try again later", code="queue_full")
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        case EngineStopped():
            status, body = 503, error_body(503, str(error), code="engine_stopped")
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        case NoTokenLeft():
            status, body = 400, error_body(400, str(error), code="invalid_value")
        case EngineError():
            status, body = 500, error_body(500, str(error), code="engine_error")
        case _:
            status, body = (
                500,
                error_body(
                    500, "internal error; the server's log has the details", code="internal_error"
                ),
            )
    return status, body, headers


def install_error_handlers(app: FastAPI) -> None:
    """Answer all exceptions of the application with error_response."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException) and error.status_code in (404, 405):
            error = HTTPException(
                error.status_code, _no_route(request, error.status_code), error.headers
            )
        return error_response(error, request.scope)

    for kind in (APIError, HTTPException, QueueFull, EngineError, Exception):
        app.add_exception_handler(kind, answer)


def _no_route(request: Request, status: int) -> str:
    if status == 404:
        return f"there is no {request.url.path} here"
    return f"{request.url.path} does not take {request.method} requests"
