"""The OpenAPI document of the server, which is FastAPI's with our bodies, and a page that shows
it."""

import html
from functools import cache

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse
from pydantic.json_schema import models_json_schema

from smartspec.server.anthropic.body import MessagesBody, PromptBody
from smartspec.server.http.body_model import Body
from smartspec.server.openai.chat_body import ChatBody, DetokenizeBody, TokenizeBody
from smartspec.server.openai.completion_body import CompletionBody
from smartspec.server.openai.responses_body import ResponsesBody

REFERENCE = "#/components/schemas/"
# Routes read their bodies themselves, in threads and with refusals of our own, so FastAPI does not
# know them.
BODIES: dict[str, type[Body]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/responses": ResponsesBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": PromptBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}


def add_document(app: FastAPI) -> None:
    """What FastAPI serves as /openapi.json is this document, and /docs shows it."""

    @cache
    def document() -> dict:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        kinds = [(kind, "validation") for kind in BODIES.values()]
        schemas = models_json_schema(kinds, ref_template=f"{REFERENCE}{{model}}")[1]["$defs"]
        document.setdefault("components", {})["schemas"] = schemas
        for path, kind in BODIES.items():
            document["paths"][path]["post"]["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": REFERENCE + kind.__name__}}},
            }
        return document

    app.openapi = document

    @app.get("/docs", response_class=HTMLResponse)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(document()))


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
