"""The published document is that of the server."""

from fake_server import user


def document(server) -> dict:
    return server.http.get("/openapi.json").json()


def test_every_body_that_a_route_reads_is_described(server):
    for path, methods in document(server)["paths"].items():
        assert ("requestBody" in methods.get("post", {})) == ("post" in methods and path != "/ping")


def test_what_a_route_answers_is_described(server):
    paths = document(server)["paths"]
    for path, kinds in {
        "/v1/completions": ["application/json", "text/event-stream"],
        "/tokenize": ["application/json"],
        "/v1/speculation/events": ["text/event-stream"],
        "/metrics": ["text/plain"],
        "/docs": ["text/html"],
    }.items():
        (operation,) = paths[path].values()
        assert sorted(operation["responses"]["200"]["content"]) == kinds
        assert operation["responses"].keys() == {"200", "default"}


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
    messages = [user("a")]
    for body, status in (
        ({}, 400),
        ({"prompt": "a", "messages": messages}, 400),
        ({"prompt": "a", "messages": []}, 200),
    ):
        assert server.post("/tokenize", body).status_code == status


def test_the_page_names_every_field(guarded_server):
    page = guarded_server.http.get("/docs").text
    for name in ("POST /v1/responses", "response_format", "max_tokens", "list of Message"):
        assert name in page
    operation = document(guarded_server)["paths"]["/v1/responses"]["post"]
    assert operation["security"] == [{"HTTPBearer": []}, {"APIKeyHeader": []}]
