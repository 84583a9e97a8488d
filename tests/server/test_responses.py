"""POST /v1/responses, with OpenAI's client."""

import pytest
from fake_server import check_error

SAID = "system\nOne two three"
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def send(server, **fields):
    return server.response(instructions="One two three", input="Hi", **fields)


def test_a_whole_response(server):
    response = send(server, store=False, metadata={"a": "b"})
    assert (
        response.output_text == SAID
        and response.status == "completed"
        and response.error is None
        and response.store is False
    )
    assert (
        response.metadata == {"a": "b"}
        and response.usage.total_tokens > response.usage.input_tokens > 0
    )
    cut = send(server, max_output_tokens=2)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"


def test_a_conversation_in_items(server):
    parts = [{"type": "input_text", "text": "One"}, {"type": "output_text", "text": " two"}]
    items = [
        {"role": "developer", "content": parts},
        {"type": "message", "role": "user", "content": "Hi"},
    ]
    assert server.response(input=items).output_text == "system\nOne two"


def said_back(server, text: str, **fields):
    """The fake model says the prompt back: of a conversation of one system message, that."""
    return server.response(instructions=text, input="Hi", tools=[TOOL], **fields)


def test_a_call_of_a_tool_is_an_item(server):
    response = said_back(server, f"I look. {CALL}")
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert (call.name, call.arguments, call.status) == ("weather", '{"city": "Oslo"}', "completed")
    assert call.call_id and "I look." in response.output_text
    assert (
        response.tools[0].name == "weather"
        and response.tool_choice == "auto"
        and response.parallel_tool_calls
    )


@pytest.mark.parametrize("text", [f"I look. {CALL}", "No call."])
def test_a_stream_has_the_same_items(burst_server, text):
    whole = said_back(burst_server, text)
    events = list(said_back(burst_server, text, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [events[0].type, events[-1].type] == ["response.created", "response.completed"]
    last = events[-1].response
    said = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(said) == last.output_text == whole.output_text
    assert last.usage.output_tokens == whole.usage.output_tokens
    done = [event.item.id for event in events if event.type == "response.output_item.done"]
    added = [event.item.id for event in events if event.type == "response.output_item.added"]
    assert done == added == [item.id for item in last.output]
    calls = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [event.arguments for event in calls] == [
        i.arguments for i in last.output if i.type == "function_call"
    ]


@pytest.mark.parametrize(("parallel", "num_calls"), [(None, 2), (False, 1)])
def test_a_response_has_one_call_if_that_is_said(burst_server, parallel, num_calls):
    fields = {} if parallel is None else {"parallel_tool_calls": parallel}
    response = said_back(burst_server, f"{CALL}\n{CALL}", **fields)
    assert len([item for item in response.output if item.type == "function_call"]) == num_calls
    assert response.parallel_tool_calls is (parallel is not False)


def test_what_is_not_stored_is_said(server):
    answer = server.post("/v1/responses", {"input": "a", "previous_response_id": "resp_1"})
    check_error(answer, 400, "previous_response_id", "send the items of the conversation as input")


def test_structured_output(server, monkeypatch):
    seen = server.recorded(monkeypatch)
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    send(server, text={"format": schema})
    send(server, text={"format": {"type": "text"}})
    assert seen[0].grammar is not None and seen[1].grammar is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"input": [{"type": "function_call", "name": "a", "arguments": "{}"}]}, "input[0]"),
        ({"temperature": -1}, "temperature"),
        (
            {"text": {"format": {"type": "json_schema", "schema": {"type": "foo"}}}},
            "response_format",
        ),
    ],
    ids=str,
)
def test_bad_bodies(server, fields, param):
    check_error(server.post("/v1/responses", {"input": "a"} | fields), 400, param)
