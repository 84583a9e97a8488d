"""POST /v1/messages: Anthropic's interface, whole and streamed, with tools and thoughts."""

import json

import pytest
from fake_server import MODEL

from smartspec.server.anthropic.body import MessagesBody, to_messages

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TOOL = {"name": "weather", "description": "Of a city", "input_schema": {"type": "object"}}
USER = {"role": "user", "content": "Hi"}
BASE = {"model": MODEL, "max_tokens": 400, "messages": [USER]}
THINKS = "{{ messages[0].content }}{# </think>, tools #}"  # the fake model says the prompt back
ALL = f"<think>\nWell.\n</think>\nHello {CALL}"


def send(server, **fields) -> dict:
    answer = server.http.post("/v1/messages", json=BASE | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(server, **fields) -> list[dict]:
    answer = server.http.post("/v1/messages", json=BASE | {"stream": True} | fields)
    lines = answer.text.strip().split("\n\n")
    found = [json.loads(line.split("data: ", 1)[1]) for line in lines]
    assert [line.split("\n")[0] for line in lines] == [f"event: {event['type']}" for event in found]
    return found


def test_a_whole_message(server):
    whole = send(server, system=[{"type": "text", "text": "One two three", "cache_control": {"type": "ephemeral"}}])
    assert whole["content"] == [{"type": "text", "text": "system\nOne two three"}]
    assert (whole["type"], whole["role"], whole["stop_reason"]) == ("message", "assistant", "end_turn")
    usage = whole["usage"]
    counted = server.http.post("/v1/messages/count_tokens", json={"system": "One two three", "messages": [USER]})
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted.json()["input_tokens"]
    assert send(server, max_tokens=1)["stop_reason"] == "max_tokens"


def test_a_thought_text_and_a_call(burst_server, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", THINKS)
    fields = {"messages": [{"role": "user", "content": ALL}], "tools": [TOOL]}
    whole = send(burst_server, **fields)
    thought, text, call = whole["content"]
    assert (thought["thinking"], text["text"]) == ("Well.", "Hello ")
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {"city": "Oslo"})
    assert whole["stop_reason"] == "tool_use"

    found = events(burst_server, **fields)
    kinds = [event["type"] for event in found]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    starts = [event for event in found if event["type"] == "content_block_start"]
    assert [event["content_block"]["type"] for event in starts] == ["thinking", "text", "tool_use"]
    assert [event["index"] for event in found if event["type"] == "content_block_stop"] == [0, 1, 2]
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "Hello "
    assert json.loads("".join(delta.get("partial_json", "") for delta in deltas)) == {"city": "Oslo"}
    assert found[-2]["delta"]["stop_reason"] == "tool_use"
    assert found[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_a_conversation_with_tools_is_that_of_a_chat():
    turns = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    messages = to_messages(MessagesBody.model_validate(BASE | {"messages": turns}).messages)
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[1].reasoning_content == "hm" and messages[1].content == "I look."
    assert json.loads(messages[1].tool_calls[0].function.arguments) == {"city": "Oslo"}
    assert (messages[2].content, messages[2].tool_call_id, messages[2].name) == ("rain", "t1", "weather")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto"),
        ({"type": "tool", "name": "weather"}, "weather"),
    ],
    ids=str,
)
def test_choices_of_tools(choice, expected):
    body = MessagesBody.model_validate(BASE | {"tools": [TOOL], "tool_choice": choice})
    chat = body.to_chat()
    got = chat.tool_choice if isinstance(chat.tool_choice, str) else chat.tool_choice.function.name
    assert got == expected
    assert chat.max_calls == 1 or not choice.get("disable_parallel_tool_use")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages[0].role"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"temperature": -1}, "temperature"),
        ({"container": "c"}, "container"),
    ],
    ids=str,
)
def test_bad_bodies(server, fields, param):
    answer = server.http.post("/v1/messages", json=BASE | fields)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text
