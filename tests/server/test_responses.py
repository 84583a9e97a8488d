"""POST /v1/responses, with OpenAI's client."""

import pytest
from fake_server import MODEL

SAID = "system\nOne two three"


def send(server, **fields):
    return server.client.responses.create(model=MODEL, instructions="One two three", input="Hi", **fields)


def test_a_whole_response(server):
    response = send(server, store=False, metadata={"a": "b"})
    assert response.output_text == SAID and response.status == "completed" and response.error is None
    assert response.metadata == {"a": "b"} and response.usage.total_tokens > response.usage.input_tokens > 0
    cut = send(server, max_output_tokens=2)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"


def test_a_streamed_response(burst_server):
    events = list(send(burst_server, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == SAID
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert events[-1].response.output_text == SAID and events[-1].response.usage.output_tokens > 0


def test_a_conversation_in_items(server):
    parts = [{"type": "input_text", "text": "One"}, {"type": "output_text", "text": " two"}]
    items = [{"role": "developer", "content": parts}, {"type": "message", "role": "user", "content": "Hi"}]
    assert server.client.responses.create(model=MODEL, input=items).output_text == "system\nOne two"


def test_structured_output(server):
    seen = []
    observe = server.core.add_request
    server.core.add_request = lambda request: (seen.append(request.grammar), observe(request))
    try:
        schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
        send(server, text={"format": schema})
        send(server, text={"format": {"type": "text"}})
    finally:
        del server.core.add_request
    assert seen[0] is not None and seen[1] is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": "a", "temperature": -1}, "temperature"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"input": "a", "text": {"format": {"type": "json_schema", "schema": {"type": "foo"}}}}, "response_format"),
    ],
    ids=str,
)
def test_bad_bodies(server, fields, param):
    answer = server.http.post("/v1/responses", json=fields)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text
