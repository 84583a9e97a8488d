"""Bad requests: each gets OpenAI's error shape and a message that names the matter, and the server
goes on."""

import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from fake_server import (
    MAX_BATCH,
    MAX_MODEL_LEN,
    MAX_QUEUE,
    MODEL,
    check_error,
    eventually,
    function,
    user,
)

from smartspec.engine.models import chat_templates

MEBIBYTE = 2**20
USER = user("Hi")


@pytest.fixture(autouse=True)
def still_serves(server):
    yield
    assert server.completed(prompt="One two") == "One two"


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("prompt", "", "empty"),
        ("prompt", [], "empty"),
        ("prompt", ["a", ""], "empty"),
        ("prompt", [[1], []], "empty"),
        ("prompt", [1, "a"], "token ids"),
        ("prompt", [True], "token ids"),
        ("prompt", 5, "5"),
        ("prompt", None, "required"),
        ("prompt", [10**9], "1000000000"),
        ("prompt", [-1], "-1"),
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", -5, "-5"),
        ("max_tokens", "5", "integer"),
        ("max_tokens", 5.5, "integer"),
        ("temperature", -1, "-1"),
        ("repetition_penalty", 1e-300, "[0.01, 100]"),
        ("top_p", 0, "0"),
        ("top_k", -2, "-2"),
        ("top_k", 2**70, "2147483648"),
        ("seed", 2**70, "less"),
        ("stop", "", "empty"),
        ("stop", ["x", ""], "empty"),
        ("stop", ["x"] * 17, "17"),
        ("stop_token_ids", [10**6], "1000000"),
        ("logprobs", 21, "21"),
        ("prompt_logprobs", 21, "21"),
        ("prompt_logprobs", -1, "-1"),
        ("n", 1000, "128"),
        ("guided_grammar", "start: 'a'", "JSON schemas"),
        ("structured_outputs", {"grammar": "start: 'a'"}, "exactly one"),
        ("best_of", 2, "unsupported"),
        ("request_id", "a b", "pattern"),
        ("request_id", "a" * 129, "128"),
        ("guided_json", '{"items":' * 400 + "{}" + "}" * 400, "nested"),
    ],
)
def test_a_value_of_a_completion(server, field, value, word):
    check_error(server.complete(**{"prompt": "a", field: value}), 400, field, word)


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({"prompt": ["a", [1]], "n": 0}, "n", "1"),
        ({"stop": [1]}, "stop[0]", "string"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream"),
        ({"prompt": [[5] * 400] * 4, "prompt_logprobs": 20}, "prompt_logprobs", "33600 entries"),
        ({"echo": True, "logprobs": 1, "stream": True}, "logprobs", "stream"),
        ({"echo": True, "logprobs": 21}, "logprobs", "21"),
        ({"prompt": [[5] * 400] * 4, "echo": True, "logprobs": 20}, "logprobs", "33600 entries"),
        ({"echo": True, "max_tokens": -2}, "max_tokens", "-2"),
        ({"prompt": [5] * 9, "truncate_prompt_tokens": 8}, "truncate_prompt_tokens", "9 tokens"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "json_object"),
        ({"bad_words": ["x" * 257]}, "bad_words[0]", "256"),
        ({"prompt": ["a"] * 250_000}, None, "250000 choices"),
        ({"n": MAX_BATCH + MAX_QUEUE + 1}, None, f"more than the {MAX_BATCH + MAX_QUEUE}"),
        ({"stop_token_ids": ["a"] * 250_000}, "stop_token_ids[0]", "integer"),
        ({"stop_token_ids": [5] * 1025}, "stop_token_ids", "1024"),
        ({"stop": "x" * 1025}, "stop", "1025"),
        (dict.fromkeys(map(str, range(30_000)), 1), None, "128 fields"),
        ({"speculation": dict.fromkeys(map(str, range(200)), 1)}, "speculation", "128 fields"),
        ({"prompt": 10**2000}, "prompt", "..."),
    ],
)
def test_completion_bodies(server, body, param, word):
    """What is too much is refused in few words, before it takes long."""
    answer = server.complete(**{"prompt": "a"} | body)
    check_error(answer, 400, param, word)
    assert len(answer.content) < 1000


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": None}, "messages", "required"),
        ({"messages": "Hi"}, "messages", "array"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role", "robot"),
        ({"messages": [USER, {"content": "Hi"}]}, "messages[1].role", "required"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "required"),
        ({"messages": [user(5)]}, "messages[0].content", "string"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "20, got 21"),
        ({"logprobs": 2}, "logprobs", "boolean"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "required"),
        ({"continue_final_message": True}, "continue_final_message", "assistant"),
        (
            {"chat_template_kwargs": {"tokenize": True}},
            "chat_template_kwargs.tokenize",
            "variable",
        ),
        ({"reasoning_effort": 3}, "reasoning_effort", "string"),
        (
            {"messages": [USER | {"reasoning_content": 5}]},
            "messages[0].reasoning_content",
            "string",
        ),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported"),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "unsupported"),
        ({"documents": [{"text": "a"}]}, "documents", "unsupported"),
        ({"messages": [user("word " * 1000)]}, "messages", str(MAX_MODEL_LEN)),
    ],
)
def test_chat_bodies(server, body, param, word):
    check_error(server.chat(**{"messages": [USER]} | body), 400, param, word)


@pytest.mark.parametrize(
    ("content", "param", "word"),
    [
        (b"", None, "JSON"),
        (b'{"prompt": "a"', None, "JSON"),
        (b"[" * 100_000, None, "JSON"),
        (b'["a"]', None, "body"),
        (b"{}", "prompt", "required"),
        (b'{"prompt": "\xff\xfe"}', None, "JSON"),
        (b'{"prompt": "\\ud800"}', None, "JSON"),
        (b'{"prompt": "a", "temperature": NaN}', "temperature", "finite"),
        (b'{"prompt": "a", "top_p": 1e999}', "top_p", "finite"),
    ],
)
def test_raw_bodies(server, content, param, word):
    check_error(server.http.post("/v1/completions", content=content), 400, param, word)


def test_prompt_longer_than_the_context(server):
    check_error(server.complete(prompt="word " * 600), 400, "prompt", "601", str(MAX_MODEL_LEN))
    check_error(server.complete(prompt=[5] * MAX_MODEL_LEN), 400, "prompt", str(MAX_MODEL_LEN))


def test_megabytes_of_prompt_are_refused_without_tokenising(server, monkeypatch):
    # nothing reaches the engine
    monkeypatch.setattr(type(server.core.executor), "begin_step", None)
    check_error(server.complete(prompt="word " * MEBIBYTE), 400, "prompt", "characters")
    monkeypatch.undo()


def test_unknown_model(server):
    check_error(server.complete(prompt="a", model="gpt-9"), 404, "model", "gpt-9", MODEL)
    with pytest.raises(openai.NotFoundError) as caught:
        server.client.chat.completions.create(model="gpt-9", messages=[USER])
    assert caught.value.code == "model_not_found"
    check_error(server.http.get("/v1/models/gpt-9"), 404, "model", "gpt-9")


def test_unknown_path_and_method(server):
    check_error(server.post("/v1/embeddings", {}), 404, None, "/v1/embeddings")
    answer = server.http.get("/v1/completions")
    check_error(answer, 405, None, "GET")
    assert answer.headers["allow"] == "POST"


def test_body_of_50_megabytes(server):
    chunks = [b" " * MEBIBYTE] * 50
    for content in (b"".join(chunks), iter(chunks)):  # of a known length, and in chunks
        answer = server.http.post("/v1/completions", content=content)
        check_error(answer, 413, None, "8388608")


def test_announced_body_is_refused_before_it_is_sent(server):
    with server.connect() as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: 52428800\r\nExpect: "
            b"100-continue\r\n\r\n"
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")


def test_body_just_under_the_limit_is_read(server):
    body = b'{"prompt": "One"}'
    answer = server.http.post("/v1/completions", content=body + b" " * (8 * MEBIBYTE - len(body)))
    assert answer.json()["choices"][0]["text"] == "One"


def test_model_without_chat_template(server, set_template):
    set_template(None)
    check_error(server.chat(messages=[USER]), 400, None, "chat template", "/v1/completions")


def test_model_with_templates_for_tools_alone(server, set_template):
    template = "{{ tools | length }} {{ messages[0].content }}"
    set_template({"tool_use": template, "rag": ""})
    check_error(server.chat(messages=[USER]), 400, "tools", "rag, tool_use", "--chat-template")
    tool = function("f")
    assert server.said(messages=[USER], tools=[tool]).startswith("1 ")


@pytest.mark.parametrize(
    ("template", "word"),
    [
        ("{{ 1 / 0 }}", "division"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[9].content.x }}", "no element 9"),
        ("{{ 'x' * 2000000 }}", "2000000 characters"),
        ("{% for a in range(99999) %}{{ 'x' * 99 }}{% endfor %}", "9899901 characters"),
    ],
)
def test_chat_templates_that_fail_or_print_without_end(server, set_template, template, word):
    set_template(template)
    check_error(server.chat(messages=[USER]), 400, "messages", word)


def test_chat_templates_that_do_not_end_hold_nobody_up(server, set_template, monkeypatch):
    """More of them than there are threads to read bodies in, all at once."""
    monkeypatch.setattr(chat_templates, "QUICK_SECONDS", 0.1)
    monkeypatch.setattr(chat_templates, "MAX_SECONDS", 0.5)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    set_template(loop)
    with ThreadPoolExecutor(12) as pool:
        chats = [pool.submit(server.chat, messages=[USER]) for _ in range(12)]
        assert server.completed(prompt="One two") == "One two"
        for chat in chats:
            check_error(chat.result(), 400, "messages", "longer than")
    eventually(lambda: not any(thread.name == "chat template" for thread in threading.enumerate()))


@pytest.mark.parametrize("content", [b"[" + b"[]," * 300_000 + b"1]", b'{"":1,"a":1' * 20_000])
def test_too_many_parts_are_refused_before_they_are_parsed(server, content):
    check_error(server.http.post("/v1/completions", content=content), 400, None, "too many parts")


def test_separators_within_strings_are_no_parts(server):
    text = ',[{:"\\' * 100_000
    check_error(server.complete(prompt=text), 400, "prompt", "characters")


def test_too_many_messages(server):
    check_error(server.chat(messages=[USER] * 5000), 400, "messages", "4096")
    check_error(server.chat(messages=[5] * 30_000), 400, "messages[0]", "5")
    items = {"input": [USER] * 4096, "instructions": "Be brief."}
    check_error(server.post("/v1/responses", items), 400, "messages", "4096")


FUNCTION = (
    '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"const": VALUE}}}]'
)
SPOTS = {
    "template": (
        "/tokenize",
        '"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"a": VALUE}',
    ),
    "parameters": (
        "/v1/chat/completions",
        f'"messages": [{{"role": "user", "content": "a"}}], {FUNCTION}',
    ),
    "schema": ("/v1/completions", '"prompt": "a", "guided_json": {"const": VALUE}'),
    "responses": ("/v1/responses", '"input": "a", "metadata": {"a": VALUE}'),
}


@pytest.mark.parametrize(
    "value", ["1e999", "NaN", '"\\ud800"', "[" * 400 + "]" * 400, "9" * 5000], ids=lambda v: v[:6]
)
@pytest.mark.parametrize("where", SPOTS)
def test_what_json_cannot_hold_is_refused_wherever_it_stands(server, where, value):
    path, fields = SPOTS[where]
    answer = server.http.post(path, content=f"{{{fields.replace('VALUE', value)}}}".encode())
    assert answer.status_code == 400 and answer.json()["error"]["message"], answer.text
