"""Conversations as clients build them, and limits of tokens as they send them."""

import pytest
from fake_server import MAX_MODEL_LEN, assistant, text_part, user, whole_and_streamed

from smartspec.server.anthropic.body import MessagesBody
from smartspec.server.http.body_model import BodyContext
from smartspec.server.openai.chat_body import Message
from smartspec.server.openai.responses_body import ResponsesBody
from smartspec.server.openai.responses_items import to_messages

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER = user("hi")


def said(**message) -> Message:
    return Message.model_validate(message)


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (assistant(None), ""),
        ({"role": "assistant"}, ""),
        (user([]), ""),
        (
            user(["a", {"type": "text", "text": "b", "cache_control": {}}]),
            "ab",
        ),
        (assistant([{"type": "refusal", "refusal": "no"}]), "no"),
        ({"role": "assistant", "content": None, "refusal": "no"}, "no"),
        (
            assistant([{"type": "thinking", "thinking": "hm"}, text_part("a")]),
            "a",
        ),
        (
            assistant([{"type": "new_kind", "content": [text_part("a")]}]),
            "a",
        ),
        (assistant([{"type": "new_kind", "data": 5}]), ""),
        ({"role": "tool", "content": None}, ""),
        ({"role": "tool", "content": [text_part("ok")]}, "ok"),
        ({"role": "function", "name": "f", "content": "ok"}, "ok"),
        (
            user([{"type": "document", "source": {"type": "text", "data": "a"}}]),
            "a",
        ),
    ],
    ids=str,
)
def test_contents_of_every_shape(message, content):
    assert said(**message).content == content


@pytest.mark.parametrize(
    "kind", ["image_url", "input_image", "input_audio", "video_url", "file", "input_file"]
)
def test_what_is_seen_or_heard_is_refused_by_name(server, kind):
    part = {"type": kind, kind: {"url": "data:"}}
    for path, body in (
        ("/v1/chat/completions", {"messages": [user([part])]}),
        ("/v1/responses", {"input": [user([part])]}),
        (
            "/v1/responses",
            {"input": [{"type": "function_call_output", "call_id": "a", "output": [part]}]},
        ),
    ):
        answer = server.post(path, body)
        assert (
            answer.status_code == 400 and f"of type {kind}" in answer.json()["error"]["message"]
        ), answer.text


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([CALL | {"index": 0, "extra_content": {}}], ("c1", "f", "{}")),
        ([CALL | {"function": {"name": "f", "arguments": {"a": "ö"}}}], ("c1", "f", '{"a": "ö"}')),
        ([CALL | {"function": {"name": "f", "arguments": None}}], ("c1", "f", "{}")),
        ([{"function": {"name": "f"}}], ("", "f", "{}")),
        (
            [CALL | {"function": {"name": "what the model wrote!"}}],
            ("c1", "what the model wrote!", "{}"),
        ),
        (
            [{"id": "c1", "type": "custom", "custom": {"name": "f", "input": "x"}}],
            ("c1", "f", '{"input": "x"}'),
        ),
    ],
    ids=str,
)
def test_calls_of_every_shape(calls, expected):
    (call,) = said(role="assistant", content=None, tool_calls=calls).tool_calls
    assert (call.id, call.function.name, call.function.arguments) == expected


def test_the_older_form_of_calls():
    message = said(role="assistant", content=None, function_call={"name": "f", "arguments": "{}"})
    assert [call.function.name for call in message.tool_calls] == ["f"]
    result = said(role="function", name="f", content="ok")
    assert (result.role, result.name, result.tool_call_id) == ("tool", "f", "f")
    assert not said(
        role="assistant", content="a", function_call=None, tool_calls=None, audio=None
    ).tool_calls


def read(*items: dict) -> list[Message]:
    return to_messages(ResponsesBody.model_validate({"input": [*items, USER]}).input)[:-1]


THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}


def call_item(number: int) -> dict:
    return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}


def output_item(number: int, output: object) -> dict:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": output}


def test_items_are_the_messages_of_a_chat():
    """A thought goes with the message after it, if that is the assistant's."""
    said = assistant("Wet")
    messages = read(
        *(USER, THOUGHT, call_item(1), THOUGHT, THOUGHT, call_item(2)),
        *(output_item(1, "rain"), output_item(2, [{"type": "input_text", "text": "sun"}])),
        *(THOUGHT, said, {"type": "reasoning", "id": "rs_2", "summary": []}, USER, THOUGHT),
    )
    assert [(m.role, m.content, m.reasoning_content, m.tool_call_id, m.name) for m in messages] == [
        ("user", "hi", None, None, None),
        ("assistant", "", "hm\nhm\nhm", None, None),
        ("tool", "rain", None, "c1", "f"),
        ("tool", "sun", None, "c2", "f"),
        ("assistant", "Wet", "hm", None, None),
        ("user", "hi", None, None, None),
    ]
    assert [call.id for call in messages[1].tool_calls] == ["c1", "c2"]


@pytest.mark.parametrize(
    ("kind", "fields", "called"),
    [
        (
            "custom_tool_call",
            {"name": "apply_patch", "input": "x"},
            ("apply_patch", '{"input": "x"}'),
        ),
        (
            "local_shell_call",
            {"action": {"command": ["ls"]}},
            ("local_shell", '{"command": ["ls"]}'),
        ),
        ("apply_patch_call", {"operation": {"path": "a"}}, ("apply_patch", '{"path": "a"}')),
        ("function_call", {"name": "f", "arguments": {"a": 1}}, ("f", '{"a": 1}')),
    ],
)
def test_calls_of_other_tools_and_their_outputs_are_read(kind, fields, called):
    output = {"type": f"{kind}_output", "call_id": "c", "output": [{"stdout": "a"}]}
    assistant, tool = read({"type": kind, "call_id": "c"} | fields, output)
    (call,) = assistant.tool_calls
    assert (call.function.name, call.function.arguments) == called
    assert (tool.role, tool.tool_call_id, tool.content) == ("tool", "c", '[{"stdout": "a"}]')


@pytest.mark.parametrize(
    "item",
    [
        {"type": "web_search_call", "id": "a", "action": {"query": "x"}},
        {"type": "image_generation_call", "id": "a", "result": "eA=="},
        {"type": "item_reference", "id": "a"},
        {"id": "a"},
        {"type": "compaction", "encrypted_content": "eA=="},
        {"type": "mcp_list_tools", "id": "a", "tools": []},
        {"type": "kind_of_next_month"},
    ],
    ids=str,
)
def test_items_that_say_nothing_are_skipped(item):
    assert read(item) == []


def test_items_that_say_something_are_read():
    assert [
        m.content for m in read({"type": "kind_of_next_month", "role": "assistant", "content": "a"})
    ] == ["a"]
    call, output = read(
        {"type": "mcp_call", "id": "m", "name": "find", "arguments": "{}", "output": "b"}
    )
    assert call.tool_calls[0].function.name == "find" and output.content == "b"
    assert [m.content for m in read({"type": "message", "role": "assistant", "content": None})] == [
        ""
    ]


def test_nothing_is_left_out_in_silence():
    """What no model sees is counted under its kind; a summary stands for a thought that its server
    kept."""
    summary = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}
    assert [m.reasoning_content for m in read(summary, assistant("a"))] == ["hm"]
    shot = {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "computer_screenshot"},
    }
    hidden = {"type": "redacted_thinking", "data": "eA=="}
    used = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    hidden_kinds = {"tool_use", "redacted_thinking"}
    for kind, body, names in (
        (
            ResponsesBody,
            {"input": [summary, USER, shot]},
            {"reasoning", "computer_call_output", "computer_screenshot"},
        ),
        (
            MessagesBody,
            {"max_tokens": 1, "messages": [user([used, hidden])]},
            hidden_kinds,
        ),
    ):
        context = BodyContext()
        kind.model_validate(body, context=context)
        assert context.ignored == names
    written = summary | {"content": [{"type": "reasoning_text", "text": "x"}]}  # by this server
    strict = ResponsesBody.model_validate(
        {"input": [written, USER]}, context=BodyContext(strict=True)
    )
    assert strict.input[0].content == "x"


def test_system_messages_at_the_beginning_are_one():
    developer = {"role": "developer", "content": "two"}
    chat = ResponsesBody.model_validate(
        {"instructions": "one", "input": [developer, USER, developer]}
    ).to_chat()
    assert [(m.role, m.content) for m in chat.messages][:2] == [
        ("system", "one\n\ntwo"),
        ("user", "hi"),
    ]
    assert chat.messages[2].role == "developer"


LIMITS = {
    "/v1/completions": ("max_tokens", {"prompt": [5] * 100}),
    "/v1/chat/completions": ("max_tokens", {"messages": [USER]}),
    "/v1/responses": ("max_output_tokens", {"input": "hi"}),
    "/v1/messages": ("max_tokens", {"messages": [USER]}),
}


@whole_and_streamed
@pytest.mark.parametrize("path", LIMITS)
def test_more_tokens_than_fit_are_clipped_and_the_answer_says_so(server, path, stream):
    name, body = LIMITS[path]
    for wanted in (32_000, 10**30):
        answer = server.post(path, body | {name: wanted, "stream": stream})
        assert answer.status_code == 200, answer.text
        assert 0 < int(answer.headers["X-Max-Tokens-Clipped"]) < MAX_MODEL_LEN
    for wanted in (-1, 3):
        answer = server.post(path, body | {name: wanted, "stream": stream})
        assert answer.status_code == 200 and "X-Max-Tokens-Clipped" not in answer.headers
    assert server.post(path, body | {name: -2}).status_code == 400


def test_clipped_to_what_the_context_leaves(server):
    for wanted in (10**6, -1):
        body = {"prompt": [5] * 100, "ignore_eos": True, "max_tokens": wanted}
        usage = server.got("/v1/completions", body)["usage"]
        assert usage["completion_tokens"] == MAX_MODEL_LEN - 100


@pytest.mark.parametrize("path", LIMITS)
def test_seed_minus_one_is_random(server, monkeypatch, path):
    seen = server.recorded(monkeypatch)
    name, body = LIMITS[path]
    for seed in (-1, -2, 7):
        assert server.post(path, body | {name: 2, "seed": seed}).status_code == 200
    assert [request.params.seed for request in seen] == [None, -2, 7]
