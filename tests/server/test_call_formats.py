"""Calls in the formats of other families, read as vLLM's parsers read them; and histories that
their templates refuse.

Templates and texts are excerpts of the families' own.
"""

import copy
import json

import pytest
from fake_server import assistant, function, running_server, user, whole_and_streamed
from test_tools import SCHEMAS, pushed

from smartspec.server.openai.call_formats import HERMES, format_of

OSLO, LIMA = {"city": "Oslo"}, {"city": "Lima", "days": 3}
TOOLS = [function(name, schema) for name, schema in SCHEMAS.items()]
QWEN3_CODER = """{% if tools %}{{ tools }}{% endif %}{% for message in messages %}{{ message.content }}
{%- for call in message.tool_calls %}<function={{ call.function.name }}>
{%- for name, value in call.function.arguments|items %}<parameter={{ name }}>{{ value }}</parameter>{% endfor %}
{%- endfor %}{% endfor %}"""  # noqa: E501
MISTRAL = """{%- for message in messages %}{%- if message.tool_calls is defined and message.tool_calls is not none %}
{{- "[TOOL_CALLS][" }}{%- for tool_call in message.tool_calls %}{{- tool_call.function|tojson }}
{%- if not tool_call.id is defined or tool_call.id|length != 9 %}
{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{%- endif %}{%- endfor %}
{%- elif message["role"] == "tool" %}{%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{%- endif %}
{{- '[TOOL_RESULTS]{"content": ' + message.content|string + ', "call_id": "' + message.tool_call_id + '"}' }}
{%- else %}{{- message.content }}{%- endif %}{%- endfor %}{# tools #}"""  # noqa: E501
GRANITE = """{# respond only with <|tool_call|> followed by a JSON list of tools used. #}{{ tools }}
{%- for message in messages %}{{ message['content'] }}{% endfor %}"""
PHI = """{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and
message['tools'] is not none %}{{ message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' }}
{% else %}{{ message['content'] }}{% endif %}{% endfor %}"""  # noqa: E501
LLAMA = """{{ '{"name": function name, "parameters": dictionary of argument name and its value}.' }}{# tools #}
{%- for message in messages %}{%- if 'tool_calls' in message %}{%- if not message.tool_calls|length == 1 %}
{{- raise_exception("This model only supports single tool-calls at once!") }}{%- endif %}
{{- message.tool_calls[0].function | tojson }}{%- else %}{{- message.content }}{%- endif %}{%- endfor %}"""  # noqa: E501
DEEPSEEK = """{%- for message in messages %}{%- for tool in message['tool_calls'] %}
{{- tool['function']['name'] + '\\n' + tool['function']['arguments'] }}{%- endfor %}{{- message['content'] }}
{%- endfor %}{# tools #}"""  # noqa: E501
GEMMA = """{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}{{ message['content'] }}{% endfor %}"""  # noqa: E501


def oslo(key: str = "arguments") -> str:
    return json.dumps({"name": "weather", key: OSLO})


def lima(key: str = "arguments") -> str:
    return json.dumps({"name": "weather", key: LIMA})


TAGS = """<tool_call>
<function=weather>
<parameter=city>
Lima
</parameter>
<parameter=days>
3
</parameter>
</function>
</tool_call>"""
CASES = [
    (QWEN3_CODER, f"I look.\n{TAGS}", "I look.\n", [LIMA]),
    (QWEN3_CODER, f"<tool_call>\n{oslo()}\n</tool_call>", "", [OSLO]),
    (MISTRAL, f"[TOOL_CALLS][{oslo()}, {lima()}]", "", [OSLO, LIMA]),
    (MISTRAL, f"Yes.[TOOL_CALLS]weather{json.dumps(OSLO)}", "Yes.", [OSLO]),
    (MISTRAL, f"[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{json.dumps(OSLO)}", "", [OSLO]),
    (
        MISTRAL,
        f"[TOOL_CALLS]weather[ARGS]{json.dumps(OSLO)}[TOOL_CALLS]weather{json.dumps(LIMA)}",
        "",
        [OSLO, LIMA],
    ),
    (GRANITE, f"<|tool_call|>[{oslo()}, {lima()}]", "", [OSLO, LIMA]),
    (GRANITE, f"<tool_call>[{oslo()}]", "", [OSLO]),
    (PHI, f"<|tool_call|>[{oslo()}]<|/tool_call|>", "", [OSLO]),
    (PHI, f"functools[{oslo()}]", "", [OSLO]),
    (LLAMA, f"\n{oslo('parameters')}", "", [OSLO]),
    (LLAMA, f"<|python_tag|>{oslo('parameters')}; {lima('parameters')}", "", [OSLO, LIMA]),
]
TEXTS = [
    (MISTRAL, "[TOOL_CALLS] is a mark"),
    (MISTRAL, f"[TOOL_CALLS][{oslo()}] and then words"),
    (GRANITE, "functools is a module; <|tool_call|>[1]"),
    (LLAMA, '{"city": "Oslo"}'),
    (LLAMA, f"Like {oslo()}"),
    (LLAMA, "{x} is a set"),
    (QWEN3_CODER, "<tool_call>\n<function=weather>\n</tool_call>"),
]


def read(template: str, text: str, size: int, is_cut: bool = False) -> tuple[str, list[dict]]:
    cuts = range(size, len(text), size)
    shown, calls, _ = pushed(text, cuts, format_of(template), is_cut)
    assert {name for name, _ in calls} <= {"weather"}
    return shown, [json.loads(arguments) for _, arguments in calls]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(("template", "text", "shown", "called"), CASES)
def test_calls_are_read(template, text, shown, called, size):
    assert read(template, text, size) == (shown, called)
    assert format_of("{# tools #}") is HERMES


def test_tags_that_do_not_end_take_no_more_time_than_others():
    """Looked at again from each of them, this text would take minutes."""
    text = "<parameter=city>" * 30_000 + "<parameter=" * 30_000
    assert read(
        QWEN3_CODER, f"<tool_call>\n<function=weather>{text}</function>\n</tool_call>", len(text)
    ) == ("", [{}])


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(("template", "text"), TEXTS)
def test_what_is_no_call_is_text(template, text, size):
    assert read(template, text, size) == (text, [])


@pytest.mark.parametrize(("template", "text", "shown", "called"), CASES)
def test_a_call_that_max_tokens_cuts_is_no_content(template, text, shown, called):
    """Wherever it is cut, but within the first half of a mark, which may be any text."""
    marks = format_of(template).begin
    for end in range(len(shown), len(text)):
        seen, calls = read(template, text[:end], 1000, is_cut=True)
        is_mark = any(
            2 * (end - len(shown)) <= len(mark) and mark.startswith(text[len(shown) : end])
            for mark in marks
        )
        assert calls == called[: len(calls)]
        assert seen.strip() == (text[:end] if is_mark else shown).strip()


@whole_and_streamed
def test_marks_that_are_special_tokens_are_seen(tokenizer, stream):
    """They would have no text. The fake model says its prompt back."""
    own = copy.deepcopy(tokenizer)
    own.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]"]})
    own.chat_template = "{{ messages[0].content }}{# [TOOL_CALLS] tools #}"
    with running_server(own) as server:
        messages = [user(f"Yes.[TOOL_CALLS][{oslo()}]")]
        found = server.answered(stream, messages=messages, tools=TOOLS)
        assert (found.text, found.reason) == ("Yes.", "tool_calls")
        (call,) = found.calls
        assert json.loads(call.function.arguments) == OSLO
        assert "[TOOL_CALLS]" not in server.said(messages=messages)


@pytest.mark.parametrize("template", [MISTRAL, LLAMA, DEEPSEEK, GEMMA, PHI, GRANITE, QWEN3_CODER])
def test_what_the_server_wrote_it_takes_back(server, tokenizer, set_template, template):
    """Its ids, several calls, a thought: whatever the template refuses of that. The arguments are
    in the prompt."""
    calls = [
        {
            "id": f"call_{number:024}",
            "function": {"name": "weather", "arguments": json.dumps(place)},
        }
        for number, place in enumerate((OSLO, LIMA))
    ]
    said = assistant(None) | {"refusal": None, "reasoning_content": "Hm.", "tool_calls": calls}
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"Rain {n}"}
        for n, call in enumerate(calls)
    ]
    question = user("How is it there?")
    set_template(template)
    for turns in (
        [question],
        [question, said, *results],
        [question, said, *results, assistant("Wet"), question],
    ):
        answer = server.got("/tokenize", {"messages": turns, "tools": TOOLS})
        prompt = tokenizer.decode(answer["tokens"])
        assert ("Oslo" in prompt and "Lima" in prompt and "Rain 1" in prompt) == (len(turns) > 1)
        # excerpts that write no tools
        assert "weather" in prompt or template in (MISTRAL, LLAMA, DEEPSEEK)
