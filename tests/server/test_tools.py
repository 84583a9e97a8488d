"""Tools: into the prompt, out of the text, and demanded by a grammar."""

import json
import random
from collections.abc import Sequence

import pytest
from fake_server import (
    allows,
    assistant,
    check_error,
    compiled,
    form_of,
    function,
    system,
    text_part,
    user,
    whole_and_streamed,
)

from smartspec.server.openai import call_formats, tool_calls
from smartspec.server.openai.call_formats import HERMES, CallFormat
from smartspec.server.openai.chat_body import ChatBody, Message
from smartspec.server.openai.messages import to_plain_template, to_template
from smartspec.server.openai.tool_calls import ToolCallReader
from smartspec.server.openai.tools import MAX_CALLS, CallGrammar
from smartspec.server.structured import json_text

USER = user("What is the weather in Oslo?")
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "$defs": {"City": {"type": "string"}},
}
SCHEMAS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    }
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city", "parameters": PARAMETERS},
}
OTHER = function("time")
NOTHING = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "shown", "called"),
    [
        ("Hello <b>", "Hello <b>", []),
        (CALL, "", ["weather"]),
        (f"I look. {CALL}\n{CALL}\n", "I look. ", ["weather", "weather"]),
        (CALL.removesuffix("</tool_call>"), "", ["weather"]),
        (
            '<tool_call>[{"name": "a", "arguments": {}}, {"name": "b", "parameters": '
            "{}}]</tool_call>",
            "",
            ["a", "b"],
        ),
        (CALL.replace("Oslo", "</tool_call>"), "", ["weather"]),
        (CALL.replace("Oslo", '\\"</tool_call>'), "", ["weather"]),
        (f'<tool_call>5" long</tool_call>{CALL}', '<tool_call>5" long</tool_call>', ["weather"]),
        (f'<tool_call>{{"a\n"</tool_call>{CALL}', '<tool_call>{"a\n"</tool_call>', ["weather"]),
        ("<tool_call>no JSON</tool_call> and on", "<tool_call>no JSON</tool_call> and on", []),
        ('<tool_call>{"name": "a"} or</tool_call>', '<tool_call>{"name": "a"} or</tool_call>', []),
        ("<tool_call>[1]</tool_call><tool_c", "<tool_call>[1]</tool_call><tool_c", []),
        (CALL.replace('"Oslo"', "NaN"), CALL.replace('"Oslo"', "NaN"), []),
        (f"I look.\n{CALL}\n\n and so  on {CALL}\n", "I look.\nand so  on ", ["weather"] * 2),
    ],
)
def test_calls_are_told_from_text(text, shown, called, size):
    seen, calls, num_calls = pushed(text, range(size, len(text), size))
    assert seen == shown and [name for name, _ in calls] == called and num_calls == len(calls)
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('"{\\"city\\": \\"Oslo\\"}"', {"city": "Oslo"}),
        (json.dumps(json.dumps(json.dumps({"city": "Oslo"}))), {"city": "Oslo"}),
        ("null", {}),
        ('""', {}),
        ('" "', {}),
        ('"null"', {}),
        ('{"a": null}', {"a": None}),
        ("[]", None),
        ('[{"city": "Oslo"}]', None),
        ('"Oslo"', None),
        ('"[1]"', None),
        ("3", None),
        ("true", None),
    ],
)
def test_arguments_are_an_object_or_the_call_is_text(written, arguments):
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    shown, calls, _ = pushed(text, [])
    assert [json.loads(call) for _, call in calls] == ([] if arguments is None else [arguments])
    assert shown == (text if arguments is None else "")


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ('{"name": "f"}', [("f", "{}")]),
        ('{"name": "f", "arguments": null, "parameters": {"a": 1}}', [("f", '{"a": 1}')]),
        ('[{"name": "f"}, {"name": "g", "arguments": 3}]', []),
        ('{"name": null, "arguments": {}}', []),
    ],
)
def test_calls_without_arguments(text, called):
    assert pushed(f"<tool_call>{text}</tool_call>", [])[1] == called


PIECES = (
    "<tool_call>",
    "</tool_call>",
    '{"name": "a", "arguments": {"x": "',
    '"}}',
    '{"name":"b"}',
    '"',
    "\\",
    " ",
    "\n",
    "said",
    "<",
    "</tool",
    "{",
    "[",
    ":",
    ",",
    "1",
    "tru",
    CALL,
    CALL.replace("Oslo", "</tool_call>"),
)


def pushed(
    text: str, cuts: Sequence[int], form: CallFormat = HERMES, is_cut: bool = False
) -> tuple[str, list[tuple[str, str]], int]:
    """The text that is shown, the calls, and how many the reader counts."""
    reader, seen, calls = ToolCallReader(MAX_CALLS, form, SCHEMAS), "", []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        piece, found = reader.push(text[begin:end], end == len(text), is_cut)
        seen, calls = seen + piece, calls + [(call.name, call.arguments) for call in found]
    return seen, calls, reader.num_calls


def test_however_a_text_is_cut_the_same_comes_out():
    chance = random.Random(0)
    for _ in range(5000):
        text = "".join(chance.choices(PIECES, k=chance.randrange(1, 12)))
        cuts = sorted(chance.choices(range(len(text)), k=chance.randrange(8)))
        assert pushed(text, cuts) == pushed(text, []), (text, cuts)


def test_each_character_is_looked_at_once(monkeypatch):
    """A call that does not end, of end marks within a string: counted in characters that are
    scanned and parsed."""
    seen, parsed = [], []
    feed = tool_calls._Call.feed
    counted = lambda self, text, begin: seen.append(len(text) - begin) or feed(self, text, begin)  # noqa: E731
    monkeypatch.setattr(tool_calls._Call, "feed", counted)
    monkeypatch.setattr(
        call_formats,
        "read_first_json",
        lambda text: parsed.append(len(text)) or json_text.read_first_json(text),
    )
    text = '<tool_call>{"name":"f","arguments":{"a":"' + "</tool_call>" * 2000
    shown, calls, _ = pushed(text, range(50, len(text), 7))
    assert shown == text and not calls
    assert sum(seen) < len(text) and sum(parsed) < len(text)


@pytest.mark.parametrize(
    "arguments", ['{"a": "\\ud800"}', '{"a": 1e999}', "[" * 400, "no JSON"], ids=lambda v: v[:15]
)
def test_odd_arguments_in_the_history_are_text(server, arguments):
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    history = [
        USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]
    assert server.chat(messages=history, max_tokens=2).status_code == 200


def body(**fields) -> ChatBody:
    return ChatBody(**{"messages": [USER]} | fields)


def test_a_demanded_call_is_held_to_its_schema(tokenizer):
    for choice, other in (("required", True), (function("weather"), False)):
        requested = body(tools=[TOOL, OTHER], tool_choice=choice).grammars()["tool_choice"]
        grammar = compiled(tokenizer, requested)
        for text, is_allowed in (
            (CALL, True),
            (NOTHING, other),
            ("I look", False),
            (CALL.replace('"Oslo"', '"Oslo", "unit": 1'), False),
            (CALL.replace('"Oslo"', "3"), False),
        ):
            assert allows(grammar, tokenizer, text) == is_allowed, (choice, text)


def test_an_answer_in_a_format_may_be_a_call_instead(tokenizer):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    (requested,) = body(tools=[TOOL], response_format=form_of(schema)).grammars().values()
    assert isinstance(requested, CallGrammar)
    grammar = compiled(tokenizer, requested)
    assert allows(grammar, tokenizer, CALL) and allows(grammar, tokenizer, '{"a": 3}')


@pytest.mark.parametrize(("parallel", "most"), [(None, 1), (False, 1), (True, 3)])
def test_several_calls_are_demanded_only_if_that_is_said(tokenizer, parallel, most):
    chat = body(tools=[TOOL, OTHER], tool_choice="required", parallel_tool_calls=parallel)
    grammar = compiled(tokenizer, chat.grammars()["tool_choice"])
    for num_calls in (1, 2, 3):
        text = "\n".join([CALL] * num_calls)
        assert allows(grammar, tokenizer, text) == (num_calls <= most)
    named = body(tools=[TOOL], tool_choice=function("weather"), parallel_tool_calls=True)
    assert not named.grammars()["tool_choice"].several


@whole_and_streamed
@pytest.mark.parametrize(("parallel", "num_calls"), [(True, 2), (False, 1)])
def test_calls_come_back_and_those_after_the_first_if_that_is_said(
    burst_server, parallel, num_calls, stream
):
    """The fake model says its prompt back up to the end of the first message, and here that is
    calls."""
    found = burst_server.answered(
        stream,
        messages=[system(f"{CALL}\n{CALL}")],
        tools=[TOOL],
        parallel_tool_calls=parallel,
        stop="</tools>",  # the fake model also says what the system message says of tools
    )
    assert len(found.calls) == num_calls
    for number, call in enumerate(found.calls):
        assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Oslo"}')
        assert call.id.startswith("call_") and (not stream or call.index == number)
    assert CALL not in found.text and found.reason == "tool_calls"


HISTORY = [
    user("Hello"),
    assistant(None)
    | {
        "refusal": None,
        "provider_specific_fields": {"refusal": None},
        "tool_calls": [
            {"id": "call_1", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "Rain"},
    {"role": "tool", "tool_call_id": "call_2", "content": [text_part("Snow")]},
]


def test_history_for_chat_templates():
    messages = [Message.model_validate(message) for message in HISTORY]
    called = to_template(messages)[1]["tool_calls"][0]["function"]
    assert called == {"name": "weather", "arguments": {"city": "Oslo"}}
    plain = to_plain_template(messages, [TOOL])
    assert [message["role"] for message in plain] == ["system", "user", "assistant", "user"]
    assert '"name": "weather"' in plain[0]["content"] and plain[2]["content"] == CALL
    assert plain[3]["content"].count("<tool_response>") == 2


def test_tools_that_are_not_offered_are_not_read(server):
    assert CALL in server.said(messages=[system(CALL)], tools=[TOOL], tool_choice="none")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL], "tool_choice": function("x")}, "tool_choice"),
        ({"tools": [function("a b")]}, "tools[0].function.name"),
        (
            {"tools": [TOOL], "tool_choice": "required", "response_format": form_of({})},
            "response_format",
        ),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"messages": [USER | {"tool_calls": HISTORY[1]["tool_calls"]}]}, "messages[0]"),
        ({"tools": [function("a", {"type": "foo"})], "tool_choice": "required"}, "tool_choice"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_bad_tools_are_refused_by_name(server, fields, param):
    check_error(server.chat(**{"messages": [USER]} | fields), 400, param)
