"""Thoughts of models that think: told from the answer, in chats and responses, streamed and not,
and sent back."""

import random

import pytest
from fake_server import (
    MODEL,
    allows,
    assistant,
    form_of,
    function,
    grammar_compiler,
    user,
    whole_and_streamed,
)

from smartspec.server.openai.chat_body import ChatBody
from smartspec.server.openai.thoughts import ThoughtReader, num_thought_tokens
from smartspec.server.structured.fields import after_thought

THINKS = "{{ messages[0].content }}{# </think>, tools #}"  # the fake model says the prompt back
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
CHAT_TOOL = function("weather", {"type": "object"})


def read(text: str, is_open: bool = False, cuts: tuple[int, ...] = ()) -> tuple[str, str]:
    reader, thought, said = ThoughtReader(is_open), "", ""
    for begin, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        pieces = reader.push(text[begin:end], end == len(text))
        thought, said = thought + pieces[0], said + pieces[1]
    return thought, said


@pytest.mark.parametrize(
    ("text", "is_open", "thought", "said"),
    [
        ("<think>\nWell, I\nsee.\n</think>\n\nHello ", False, "Well, I\nsee.", "Hello "),
        ("\n<think>a</think>b", False, "a", "b"),
        ("Well</think>Hello", True, "Well", "Hello"),
        ("<think>Well</think>Hello", True, "Well", "Hello"),
        (" No thought. <think>a</think>", False, "", " No thought. <think>a</think>"),
        ("<thin", False, "", "<thin"),
        ("<think>cut off </thi", False, "cut off </thi", ""),
        ("<think>a</think>b</think><think>c</think>", False, "a", "b</think><think>c</think>"),
        ("<think>\n\n</think>\n\nHello", False, "", "Hello"),
        ("", True, "", ""),
    ],
)
def test_a_thought_is_told_from_the_answer(text, is_open, thought, said):
    assert read(text, is_open) == read(text, is_open, tuple(range(1, len(text)))) == (thought, said)


def test_however_a_text_is_cut_the_same_comes_out():
    chance = random.Random(0)
    pieces = ("<think>", "</think>", "<", "</thi", "\n", " ", "a word", "think>")
    for _ in range(3000):
        text = "".join(chance.choices(pieces, k=chance.randrange(1, 9)))
        cuts, is_open = tuple(sorted(chance.choices(range(len(text)), k=4))), chance.random() < 0.5
        assert read(text, is_open, cuts) == read(text, is_open), (text, cuts)


def test_tokens_of_a_thought_are_those_up_to_its_end():
    assert num_thought_tokens(["<think>", "a", " b", "</think>", "\n", "c"], False) == 4
    assert num_thought_tokens(["a", "</thi", "nk>", "c"], True) == 3
    assert num_thought_tokens(["a", " b"], False) == 0
    assert num_thought_tokens(["a", " b"], True) == 2  # cut off


def chat(server, text: str, stream: bool, **fields):
    """(thought, text, names of called tools, finish reason)"""
    found = server.answered(stream, messages=[user(text)], **fields)
    return found.thought, found.text, [call.function.name for call in found.calls], found.reason


@whole_and_streamed
def test_a_chat_has_it_beside_the_content(burst_server, set_template, stream):
    text = "<think>\nWell, well.\n</think>\n\nHello there"
    set_template(THINKS)
    assert chat(burst_server, text, stream) == ("Well, well.", "Hello there", [], "stop")
    assert chat(burst_server, "Hello there", stream)[:2] == ("", "Hello there")
    assert chat(burst_server, "Well</think>Hello<think>\n", stream)[:2] == (
        "Well",
        "Hello<think>\n",
    )
    called = chat(burst_server, f"<think>{CALL}</think>{CALL}", stream, tools=[CHAT_TOOL])
    assert called == (CALL, "", ["weather"], "tool_calls")


def test_a_model_whose_template_knows_no_thoughts_has_none(server, set_template):
    set_template("{{ messages[0].content }}")
    assert chat(server, "<think>a</think>b", False)[:2] == ("", "<think>a</think>b")


FORM = form_of({"type": "object"})
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
CITY_TOOL = function("weather", CITY)
MESSAGES = [user("a")]
DEMANDS = [
    ({"response_format": FORM}, '{"a": 5}'),
    ({"guided_regex": "[0-9]+"}, "42"),
    ({"guided_choice": ["yes", "no"]}, "no"),
    ({"tools": [CITY_TOOL], "tool_choice": "required"}, CALL),
    ({"tools": [CHAT_TOOL], "response_format": FORM}, '{"a": 5}'),
]


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(("demand", "answer"), DEMANDS)
def test_a_grammar_holds_after_the_thought_and_not_inside(tokenizer, demand, answer, is_open):
    """As in vLLM: structured output begins where reasoning has ended. A thought may hold what the
    grammar forbids."""
    (what,) = ChatBody.model_validate({"messages": MESSAGES} | demand).grammars().values()
    grammar = grammar_compiler(tokenizer).compile(after_thought(what.definition(), is_open))

    def holds(text: str) -> bool:
        return allows(grammar, tokenizer, text + tokenizer.eos_token)

    opening = "" if is_open else "<think>"
    for thought in ("\nHm, {[ 17 </thin", f"{answer} yes\n\n"):
        for space in ("", "\n\n"):
            assert holds(f"{opening}{thought}</think>{space}{answer}")
        assert not holds(f"{opening}{thought}</think>\n\nWell, {answer}")
    assert (
        holds(answer) != is_open
        and not holds("Well")
        and not holds(f"x{opening}y</think>{answer}</think>")
    )


def test_an_answer_of_a_format_has_its_thought(server, set_template):
    set_template(THINKS)
    assert chat(server, "<think>a</think>b<think>", False, response_format=FORM)[:2] == (
        "a",
        "b<think>",
    )


@pytest.mark.parametrize(
    ("begun", "thought", "said"),
    [
        ("<think>\nI wonder", "<think>\nI wonder", "Done"),  # the fake model says its prompt back
        (
            "So <think>\nI wonder</think>\n\nWell",
            "",
            "So <think>\nI wonder</think>\n\nWell</think>Done",
        ),
        ("Well", "", "Well</think>Done"),
    ],
)
def test_a_thought_that_is_continued_stays_one(
    server, tokenizer, monkeypatch, begun, thought, said, set_template
):
    """vLLM's parsers look at all of the prompt, too."""
    set_template("{{ messages[-1].content }}{# </think> #}")
    monkeypatch.setattr(
        tokenizer,
        "apply_chat_template",
        lambda messages, **_: f"{messages[-1]['content']}</think>Done",
    )
    turns = [*MESSAGES, assistant(begun)]
    body = {"messages": turns, "max_tokens": 60}
    answer = server.chat(**body, continue_final_message=True, add_generation_prompt=False).json()
    message = answer["choices"][0]["message"]
    assert (message.get("reasoning_content", ""), message["content"]) == (
        thought.removeprefix("<think>\n"),
        said,
    )
    blocks = server.got("/v1/messages", body)["content"]
    assert [block["type"] for block in blocks] == ["thinking"] * bool(thought) + ["text"]


def test_a_response_has_an_item_of_it(burst_server, set_template):
    set_template(THINKS)
    fields = {"model": MODEL, "input": f"<think>\nWell.\n</think>\nHello {CALL}", "tools": [TOOL]}
    whole = burst_server.client.responses.create(**fields, reasoning={"effort": "low"})
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
    assert whole.output[0].content[0].text == "Well." and whole.output_text == "Hello "
    assert 0 < whole.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens
    assert whole.reasoning.effort == "low"
    with burst_server.client.responses.stream(**fields) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    kinds = [event.type for event in events]
    assert "".join(e.delta for e in events if e.type == "response.reasoning_text.delta") == "Well."
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    done = [event.output_index for event in events if event.type == "response.output_item.done"]
    assert done == [0, 1, 2]
