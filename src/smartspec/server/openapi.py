"""The OpenAPI document of the server, and a page that shows it."""

import html
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from smartspec.server.anthropic.body import MessagesBody, PromptBody
from smartspec.server.http.errors import ANTHROPIC_PATHS
from smartspec.server.openai import answers
from smartspec.server.openai.chat_body import ChatBody
from smartspec.server.openai.completion_body import CompletionBody
from smartspec.server.openai.responses_body import ResponsesBody
from smartspec.server.openai.tokenizer_bodies import DetokenizeBody, TokenizeBody

REFERENCE = "#/components/schemas/"
REFUSALS = {
    "400": "the body is wrong",
    "401": "wrong or missing key",
    "404": "there is no such model",
    "413": "the body is too large",
    "415": "the body is encoded as nothing this server reads",
    "429": "no room, try later",
    "500": "the request was lost",
    "503": "the server is stopping",
}


@dataclass(frozen=True)
class Operation:
    """An operation of the interface."""

    method: str
    path: str
    summary: str
    answer: type[BaseModel] | None = None  # None for text
    body: type[BaseModel] | None = None
    streams: bool = False
    refusals: tuple[str, ...] = ("400", "401", "413", "415")  # statuses of errors


GENERATES = {"streams": True, "refusals": tuple(REFUSALS)}
WORKS = {"refusals": ("400", "413", "415", "503")}
READS = {"refusals": ("400", "401", "404", "413", "415")}
OPERATIONS = (
    Operation(
        "post",
        "/v1/chat/completions",
        "A conversation",
        answers.ChatCompletion,
        ChatBody,
        **GENERATES,
    ),
    Operation(
        "post",
        "/v1/completions",
        "Raw text or token ids",
        answers.Completion,
        CompletionBody,
        **GENERATES,
    ),
    Operation(
        "post",
        "/v1/responses",
        "OpenAI's Responses API",
        answers.ResponsesAnswer,
        ResponsesBody,
        **GENERATES,
    ),
    Operation(
        "post",
        "/v1/messages",
        "Anthropic's Messages API",
        answers.MessageAnswer,
        MessagesBody,
        **GENERATES,
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "Tokens of a prompt",
        answers.NumTokens,
        PromptBody,
        **READS,
    ),
    Operation(
        "post",
        "/tokenize",
        "Text or conversation to token ids",
        answers.Tokens,
        TokenizeBody,
        **READS,
    ),
    Operation(
        "post", "/detokenize", "Token ids to text", answers.Detokenized, DetokenizeBody, **READS
    ),
    Operation("get", "/v1/models", "The model", answers.Models),
    Operation("get", "/v1/models/{name}", "The model, if this is its name", answers.Model, **READS),
    Operation(
        "get",
        "/v1/speculation",
        "What the controller is doing",
        answers.Speculation,
        refusals=tuple(REFUSALS),
    ),
    Operation(
        "get",
        "/v1/speculation/events",
        "The same as server-sent events, while it goes on",
        streams=True,
    ),
    Operation("get", "/health", "Readiness", answers.Status, **WORKS),
    Operation("head", "/health", "Readiness", **WORKS),
    Operation("get", "/ping", "Readiness", answers.Status, **WORKS),
    Operation("head", "/ping", "Readiness", **WORKS),
    Operation("post", "/ping", "Readiness", answers.Status, **WORKS),
    Operation("get", "/live", "Liveness", answers.Status, **WORKS),
    Operation("head", "/live", "Liveness", **WORKS),
    Operation("get", "/version", "Version of the server", answers.Version),
    Operation("get", "/metrics", "Prometheus metrics"),
    Operation("get", "/openapi.json", "This document", refusals=()),
    Operation("get", "/docs", "This document as a page", refusals=()),
)


def openapi_document(version: str, needs_key: bool) -> dict:
    """needs_key: whether clients must send one."""
    models = [(m, "validation") for op in OPERATIONS for m in (op.body, op.answer) if m is not None]
    models += [(answers.ErrorAnswer, "validation"), (answers.MessageError, "validation")]
    components: dict = {
        "schemas": models_json_schema(models, ref_template=f"{REFERENCE}{{model}}")[1]["$defs"]
    }
    bodies = {op.body.__name__ for op in OPERATIONS if op.body is not None}
    for name in _reached(components["schemas"], bodies):
        _let_null_mean_not_given(components["schemas"][name])
    document = {
        "openapi": "3.1.0",
        "info": {"title": "SmartSpec", "version": version},
        "paths": {},
        "components": components,
    }
    for operation in OPERATIONS:
        document["paths"].setdefault(operation.path, {})[operation.method] = _describe(operation)
    if needs_key:
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        document["security"] = [{"bearer": []}, {"x-api-key": []}]
    return document


def _describe(operation: Operation) -> dict:
    failure = (
        answers.MessageError if operation.path.startswith(ANTHROPIC_PATHS) else answers.ErrorAnswer
    )
    error = {"application/json": {"schema": {"$ref": REFERENCE + failure.__name__}}}
    text = {"schema": {"type": "string"}}
    content: dict = (
        {}
        if operation.streams
        else {"text/html" if operation.path == "/docs" else "text/plain": text}
    )
    if operation.path == "/openapi.json":
        content = {"application/json": {"schema": {"type": "object"}}}
    if operation.answer is not None:
        content = {"application/json": {"schema": {"$ref": REFERENCE + operation.answer.__name__}}}
    if operation.streams:
        event = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
        content["text/event-stream"] = {"schema": event}
    is_head = operation.method == "head"
    answered = {"200": {"description": operation.summary, "content": {} if is_head else content}}
    said = {} if is_head else error
    refused = {
        status: {"description": REFUSALS[status], "content": said} for status in operation.refusals
    }
    described: dict = {"summary": operation.summary, "responses": answered | refused}
    if operation.body is not None:
        schema = {"$ref": REFERENCE + operation.body.__name__}
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    if "{name}" in operation.path:
        name = {
            "name": "name",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1},
        }
        described["parameters"] = [name]
    return described


def _reached(schemas: dict, names: set[str]) -> set[str]:
    """The names of these schemas and of all that they refer to."""
    reached: set[str] = set()
    while names:
        reached |= names
        texts = [str(schemas[name]) for name in names]
        names = {
            name for name in schemas if any(f"'{REFERENCE}{name}'" in text for text in texts)
        } - reached
    return reached


def _let_null_mean_not_given(schema: dict) -> None:
    for name, field in schema.get("properties", {}).items():
        if name not in schema.get("required", ()) and {"type": "null"} not in field.get(
            "anyOf", ()
        ):
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}]}


def docs_page(document: dict) -> str:
    """The document for people: one table of fields per body. No scripts, nothing from elsewhere."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>SmartSpec</title>",
        f"<style>{STYLE}</style>",
    ]
    parts.append(
        '<h1>SmartSpec</h1><p>The document itself: <a href="openapi.json">openapi.json</a></p>'
    )
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(
                f"<h2>{method.upper()} "
                f"{html.escape(path)}</h2><p>{html.escape(operation['summary'])}</p>"
            )
            if "requestBody" in operation:
                reference = operation["requestBody"]["content"]["application/json"]["schema"][
                    "$ref"
                ]
                parts.append(
                    _table(document["components"]["schemas"][reference.removeprefix(REFERENCE)])
                )
    return "".join(parts)


STYLE = (
    "body{font:1rem system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light "
    "dark}td{padding:.2rem 1rem .2rem 0;vertical-align:top}code{word-break:break-word}"
)


def _table(schema: dict) -> str:
    rows = []
    for name, field in schema["properties"].items():
        need = "required" if name in schema.get("required", ()) else ""
        rows.append(
            f"<tr><td>{html.escape(name)}<td>{need}<td><code>{html.escape(_kind(field))}</code>"
        )
    return f"<table>{''.join(rows)}</table>"


def _kind(field: dict) -> str:
    """A schema in few words."""
    if "$ref" in field:
        return field["$ref"].removeprefix(REFERENCE)
    if "anyOf" in field:
        return " | ".join(_kind(option) for option in field["anyOf"] if option != {"type": "null"})
    if "enum" in field or "const" in field:
        return " | ".join(map(str, field.get("enum", [field.get("const")])))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    limits = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {field[key]}" for key, sign in limits.items() if key in field]
    return " ".join([field.get("type", "any"), *bounds])
