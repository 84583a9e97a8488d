"""The published document is that of the server."""

from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from smartspec.server.openai import answers


def document(server) -> dict:
    return server.http.get("/openapi.json").json()


def test_every_route_is_described(server):
    app = server.web_server.config.app
    paths = get_openapi(title="", version="", routes=app.routes)["paths"]
    served = {(method, path) for path, methods in paths.items() for method in methods}
    described = {
        (method, path) for path, methods in document(server)["paths"].items() for method in methods
    }
    assert described == served


def test_answers_are_as_described(server):
    user = {"role": "user", "content": "One two"}
    checks = (
        (answers.ChatCompletion, server.chat(messages=[user], logprobs=True, top_logprobs=1)),
        (answers.Completion, server.complete(prompt="One two", logprobs=1)),
        (answers.ResponsesAnswer, server.http.post("/v1/responses", json={"input": "One"})),
        (answers.Tokens, server.http.post("/tokenize", json={"prompt": "a"})),
        (answers.Detokenized, server.http.post("/detokenize", json={"tokens": [1]})),
        (answers.Models, server.http.get("/v1/models")),
        (answers.Speculation, server.http.get("/v1/speculation")),
        (answers.ErrorAnswer, server.complete(prompt="")),
        (
            answers.MessageAnswer,
            server.http.post("/v1/messages", json={"messages": [user], "max_tokens": 5}),
        ),
        (answers.MessageError, server.http.post("/v1/messages", json={"messages": []})),
    )
    for kind, answer in checks:
        TypeAdapter(kind).validate_python(answer.json(), extra="forbid" if kind in STRICT else None)


STRICT = (
    answers.ChatCompletion,
    answers.Completion,
    answers.Tokens,
    answers.Models,
    answers.ErrorAnswer,
)


def test_bodies_are_described_as_they_are_read(server):
    fields = document(server)["components"]["schemas"]["CompletionBody"]["properties"]
    assert fields["temperature"]["anyOf"] == [
        {
            "default": 1.0,
            "maximum": 100.0,
            "minimum": 0.0,
            "title": "Temperature",
            "type": "number",
        },
        {"type": "null"},
    ]
    assert server.complete(prompt="a", temperature=None).status_code == 200
    assert {"type": "null"} not in fields["prompt"].get("anyOf") and server.complete(
        prompt=None
    ).status_code == 400


def test_a_choice_between_fields_is_described(server):
    choice = document(server)["components"]["schemas"]["TokenizeBody"]["oneOf"]
    assert [one["required"] for one in choice] == [["prompt"], ["messages"]]
    messages = [{"role": "user", "content": "a"}]
    for body, status in (
        ({}, 400),
        ({"prompt": "a", "messages": messages}, 400),
        ({"prompt": "a", "messages": []}, 200),
    ):
        assert server.http.post("/tokenize", json=body).status_code == status


def test_the_page_names_every_field(guarded_server):
    page = guarded_server.http.get("/docs").text
    for name in ("POST /v1/responses", "response_format", "max_tokens", "list of Message"):
        assert name in page
    assert guarded_server.http.get("/openapi.json").json()["security"] == [
        {"bearer": []},
        {"x-api-key": []},
    ]
