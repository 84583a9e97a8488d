"""POST /v1/messages: Anthropic's interface, whole and streamed, with tools and thoughts."""

import json

import pytest
from fake_server import MODEL, assistant, events_of, text_part, user

from smartspec.server.anthropic.body import MessagesBody
from smartspec.server.openai.chat_body import ChatBody
from smartspec.server.openai.messages import to_template

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TOOL = {"name": "weather", "description": "Of a city", "input_schema": {"type": "object"}}
USER = user("Hi")
BASE = {"model": MODEL, "max_tokens": 400, "messages": [USER]}
THINKS = "{{ messages[0].content }}{# </think>, tools #}"  # the fake model says the prompt back
ALL = f"<think>\nWell.\n</think>\nHello {CALL}"


def send(server, **fields) -> dict:
    return server.got("/v1/messages", BASE | fields)


def chat_of(**fields) -> ChatBody:
    return MessagesBody.model_validate(BASE | fields).to_chat()


def events(server, **fields) -> list[dict]:
    answer = server.post("/v1/messages", BASE | {"stream": True} | fields)
    found, lines = events_of(answer.text), answer.text.splitlines()
    assert lines[::3] == [f"event: {event['type']}" for event in found]
    return found


def test_a_whole_message(server):
    whole = send(
        server,
        system=[{"type": "text", "text": "One two three", "cache_control": {"type": "ephemeral"}}],
    )
    assert whole["content"] == [text_part("system\nOne two three")]
    assert (whole["type"], whole["role"], whole["stop_reason"]) == (
        "message",
        "assistant",
        "end_turn",
    )
    usage = whole["usage"]
    counted = server.post(
        "/v1/messages/count_tokens", {"system": "One two three", "messages": [USER]}
    )
    assert (
        usage["input_tokens"] + usage["cache_read_input_tokens"] == counted.json()["input_tokens"]
    )
    assert send(server, max_tokens=1)["stop_reason"] == "max_tokens"


def test_a_thought_text_and_a_call(burst_server, set_template):
    set_template(THINKS)
    fields = {"messages": [user(ALL)], "tools": [TOOL]}
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
    assert json.loads("".join(delta.get("partial_json", "") for delta in deltas)) == {
        "city": "Oslo"
    }
    assert found[-2]["delta"]["stop_reason"] == "tool_use"
    assert found[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_a_conversation_with_tools_is_that_of_a_chat():
    turns = [
        USER,
        assistant(
            [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                text_part("I look."),
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
            ]
        ),
        user(
            [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [text_part("rain")],
                },
                {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
            ]
        ),
    ]
    messages = chat_of(messages=turns).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[1].reasoning_content == "hm" and messages[1].content == "I look."
    assert json.loads(messages[1].tool_calls[0].function.arguments) == {"city": "Oslo"}
    result = messages[2]
    assert (result.content, result.tool_call_id, result.name) == ("rain", "t1", "weather")


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
    chat = chat_of(tools=[TOOL], tool_choice=choice)
    got = chat.tool_choice if isinstance(chat.tool_choice, str) else chat.tool_choice.function.name
    assert got == expected
    assert chat.max_calls == 1 or not choice.get("disable_parallel_tool_use")


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
PDF = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens is required"),
        ({"messages": []}, "messages: "),
        (
            {"messages": [user([IMAGE])]},
            "messages[0].content[0]: the block is of type image",
        ),
        (
            {"messages": [user([PDF])]},
            "messages[0].content[0]: the block is of type document",
        ),
        (
            {"messages": [user([{"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}])]},
            "messages[0].content[0].content: part 0 is of type image",
        ),
        (
            {"messages": [user([{"type": "tool_result"}])]},
            "messages[0].content[0]: ",
        ),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role: "),
        ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tool_choice 'required' needs tools"),
        (
            {"tools": [TOOL, SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}},
            "names 'web_search'",
        ),
        ({"output_config": {"format": {"type": "yaml"}}}, "output_config.format.type: "),
        (
            {"thread": {"type": "continue", "previous_message_id": "msg_1"}},
            "thread: unsupported: nothing is stored",
        ),
    ],
    ids=str,
)
def test_bad_bodies(server, fields, words):
    check_error(server.post("/v1/messages", BASE | fields), 400, "invalid_request_error", words)


def check_error(answer, status: int, kind: str, words: str) -> None:
    """In Anthropic's shape, with the id that its client reads from the headers."""
    assert answer.status_code == status, answer.text
    body, message = answer.json(), answer.json()["error"]["message"]
    request_id = answer.headers["request-id"]
    error = {"type": kind, "message": message}
    assert body == {"type": "error", "error": error, "request_id": request_id}
    assert words in message and request_id == answer.headers["x-request-id"]


def test_errors_of_every_kind_have_anthropics_shape(server, guarded_server, small_server):
    url = "/v1/messages"
    check_error(server.post(url, BASE | {"model": "claude-9"}), 404, "not_found_error", "claude-9")
    check_error(server.post(f"{url}/batches", {}), 404, "not_found_error", "/v1/messages/batches")
    check_error(server.http.get(url), 405, "invalid_request_error", "GET")
    check_error(server.http.post(url, content=b"{"), 400, "invalid_request_error", "JSON")
    check_error(
        server.http.post(url, content=b" " * (9 * 2**20)), 413, "request_too_large", "8388608"
    )
    long = {"messages": [user("word " * 600)]}
    check_error(server.post(url, BASE | long), 400, "invalid_request_error", "prompt is too long")
    check_error(guarded_server.post(url, BASE), 401, "authentication_error", "x-api-key")
    assert "param" in server.post("/v1/messages_of_others", {}).json()["error"]


def test_a_stop_sequence_is_named(burst_server):
    fields = {"system": "One two three", "stop_sequences": ["zzz", "three", " th", "two"]}
    whole = send(burst_server, **fields)
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "two")
    assert whole["content"] == [text_part("system\nOne ")]
    assert events(burst_server, **fields)[-2]["delta"] == {
        "stop_reason": "stop_sequence",
        "stop_sequence": "two",
    }
    unmatched = send(burst_server, system="One", stop_sequences=["zzz"])
    assert (unmatched["stop_reason"], unmatched["stop_sequence"]) == ("end_turn", None)


def test_a_stream_without_text_has_its_events_in_order(server, set_template):
    set_template("{{ messages[0].content }}")
    kinds = [event["type"] for event in events(server, messages=[user("One two")], max_tokens=1)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


@pytest.mark.parametrize("begun", ["Well, I", "Well, I ", [text_part("Well, I")]], ids=str)
def test_what_the_assistant_has_begun_is_continued(tokenizer, begun):
    turns = [USER, assistant(begun)]
    chat = chat_of(messages=turns)
    text = tokenizer.apply_chat_template(
        to_template(chat.messages),
        continue_final_message=chat.continue_final_message,
        tokenize=False,
    )
    assert text.endswith(
        "<|im_start|>assistant\n" + (begun if isinstance(begun, str) else "Well, I")
    )


def test_an_empty_message_of_the_assistants_is_left_out(server):
    def counted(*turns: dict) -> int:
        return server.got("/v1/messages/count_tokens", {"messages": turns})["input_tokens"]

    for content in ("", [], " \n", [text_part("")]):
        assert counted(USER, assistant(content)) == counted(USER)
    called = assistant([{"type": "tool_use", "id": "a", "name": "weather", "input": {}}])
    assert counted(USER, called) > counted(USER)  # a call is not continued


def test_a_schema_holds_the_text():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "schema": schema}
    for fields in ({"output_config": {"format": wanted}}, {"output_format": wanted}):
        chat = chat_of(**fields)
        assert chat.response_format.schema == schema and "response_format" in chat.grammars()
