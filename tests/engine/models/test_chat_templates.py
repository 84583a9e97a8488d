"""Which chat template of a model is used, and templates that do not end."""

import threading

import pytest
from default_model import load_once
from test_end_of_turn import CHATML, RAISES, tokenizer_with

from smartspec.engine.models import chat_templates
from smartspec.engine.models.chat_templates import ChatTemplate, ChatTemplateError, choose_template
from smartspec.engine.models.end_of_turn import template_end
from smartspec.engine.runtime.build import with_chat_template

USER = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
PRINTS = "{% for a in range(99999) %}{% for b in range(99999) %}xy{% endfor %}{% endfor %}"


@pytest.fixture
def short_patience(monkeypatch):
    monkeypatch.setattr(chat_templates, "QUICK_SECONDS", 0.1)
    monkeypatch.setattr(chat_templates, "MAX_SECONDS", 0.2)


def num_renderings() -> int:
    return sum(thread.name == "chat template" for thread in threading.enumerate())


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize("template", [LOOPS, PRINTS])
def test_a_template_that_does_not_end_is_ended(template):
    with pytest.raises(ChatTemplateError, match="longer than"):
        ChatTemplate(tokenizer_with(template)).render(USER)
    for thread in threading.enumerate():
        if thread.name == "chat template":
            thread.join(30)
    assert num_renderings() == 0
    assert template_end(tokenizer_with(template)) is None, "a model loads all the same"


@pytest.mark.usefixtures("short_patience")
def test_slow_templates_beside_others_are_ended_sooner(monkeypatch):
    template = ChatTemplate(tokenizer_with(LOOPS))
    monkeypatch.setattr(chat_templates, "MAX_SECONDS", 10**6)
    assert all(template._slow.acquire(blocking=False) for _ in range(chat_templates.MAX_SLOW))
    with pytest.raises(ChatTemplateError, match="longer than"):
        template.render(USER)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (RAISES, "not like this"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[7].content.x }}", "no element 7"),
        ("{{ 'x' * 10 ** 17 }}", "MemoryError"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages[0].content + 1 }}", "str"),
    ],
)
def test_whatever_a_template_raises_is_said(template, message):
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(tokenizer_with(template)).render(USER)


def test_no_variable_stands_in_for_the_messages():
    with pytest.raises(ChatTemplateError):
        ChatTemplate(tokenizer_with(CHATML)).render(USER, messages=[])


@pytest.mark.parametrize(
    ("templates", "choice", "plain", "with_tools"),
    [
        (None, None, None, None),
        ("D", None, "D", "D"),
        ("D", "default", "D", "D"),
        ({"default": "D", "tool_use": "T", "rag": "R"}, None, "D", "T"),
        ({"default": "D", "rag": "R"}, None, "D", "D"),
        ({"chatml": "C"}, None, "C", "C"),
        ({"tool_use": "T", "rag": "R"}, "rag", "R", "R"),
        ({"default": "D", "tool_use": "T"}, "tool_use", "T", "T"),
    ],
)
def test_templates_by_their_names(templates, choice, plain, with_tools):
    tokenizer = tokenizer_with(templates)
    choose_template(tokenizer, choice)
    template = ChatTemplate(tokenizer)
    assert (template.text(), template.text([TOOL])) == (plain, with_tools)


def test_a_template_of_tools_alone_wants_tools():
    tokenizer = tokenizer_with({"tool_use": "T", "rag": "R"})
    choose_template(tokenizer, None)
    assert ChatTemplate(tokenizer).text([TOOL]) == "T"
    with pytest.raises(ChatTemplateError, match=r"rag, tool_use .*--chat-template"):
        ChatTemplate(tokenizer).text()


@pytest.mark.parametrize(
    ("templates", "choice", "message"),
    [
        ({"b": "B", "a": "A"}, None, r"templates a, b, .*--chat-template"),
        ({"default": "D", "a": "A"}, "nothing", "no such file.* a, default"),
        ("D", "nothing", "no such file.* default"),
        (None, "nothing", "no such file.* none"),
    ],
)
def test_choices_that_are_none_are_refused_naming_those_there_are(templates, choice, message):
    with pytest.raises(ValueError, match=message):
        choose_template(tokenizer_with(templates), choice)


@pytest.mark.parametrize("templates", [None, "D", {"a": "A", "b": "B"}])
def test_a_file_is_a_template(tmp_path, templates):
    path = tmp_path / "chat.jinja"
    path.write_text("\ufeff" + CHATML, encoding="utf-8")
    tokenizer = tokenizer_with(templates)
    choose_template(tokenizer, str(path))
    assert tokenizer.chat_template == CHATML
    path.write_text(RAISES, encoding="utf-8")  # to this conversation, perhaps not to others
    choose_template(tokenizer, str(path))
    path.write_text("{% for %}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"chat.jinja is no template"):
        choose_template(tokenizer, str(path))


def test_answers_end_where_the_chosen_template_ends_them(tmp_path, monkeypatch):
    loaded = load_once("smollm2-135m-instruct")
    monkeypatch.setattr(loaded.tokenizer, "chat_template", loaded.tokenizer.chat_template)
    path = tmp_path / "chat.jinja"
    path.write_text(
        "{% for m in messages %}{{ m.content }}<file_sep>{% endfor %}", encoding="utf-8"
    )
    end = loaded.tokenizer.convert_tokens_to_ids("<file_sep>")
    assert end not in loaded.eos_token_ids
    assert with_chat_template(loaded, str(path)).eos_token_ids == loaded.eos_token_ids | {end}
