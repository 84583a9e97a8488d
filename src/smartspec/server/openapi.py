"""The OpenAPI document of the server, which is FastAPI's with our bodies, and a page that shows
it."""

from functools import cache

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse
from jinja2 import Environment
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
# The document for people: one table of fields per body. No scripts, nothing from elsewhere.
PAGE = """<!doctype html><html lang=en><meta charset=utf-8><title>SmartSpec</title>
<style>
body { font: 1rem system-ui; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color-scheme: light dark }
td { padding: .2rem 1rem .2rem 0; vertical-align: top }
code { word-break: break-word }
</style>
<h1>SmartSpec</h1>
<p>The document itself: <a href="openapi.json">openapi.json</a></p>
{% for path, methods in document.paths.items() %}
{% for method, operation in methods.items() %}
<h2>{{ method.upper() }} {{ path }}</h2>
<p>{{ operation.summary }}</p>
{% if operation.requestBody %}
{% set schema = document.components.schemas[bodies[path].__name__] %}
<table>
{% for name, field in schema.properties.items() %}
<tr><td>{{ name }}<td>{{ "required" if name in schema.required }}<td><code>{{ kind(field) }}</code>
{% endfor %}
</table>
{% endif %}
{% endfor %}
{% endfor %}
"""


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
        page = Environment(autoescape=True).from_string(PAGE)
        return HTMLResponse(page.render(document=document(), bodies=BODIES, kind=_kind))


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
