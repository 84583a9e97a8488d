"""Fields that clients send besides OpenAI's usual ones, and vLLM's small endpoints."""

import re
from pathlib import Path

import pytest
from fake_server import (
    MAX_MODEL_LEN,
    MODEL,
    assistant,
    check_error,
    function,
    text_part,
    user,
    whole_and_streamed,
)

from smartspec import __version__

USER = user("Hello there")
OFF = {"tools": [], "tool_choice": "none", "parallel_tool_calls": True, "best_of": 1}
OFF |= {"use_beam_search": False, "length_penalty": 1.0, "detokenize": True}
OFF |= {"return_token_ids": False, "response_format": {"type": "text"}, "logit_bias": {}}


def test_fields_that_request_nothing(server):
    chat = server.chat(messages=[USER], max_completion_tokens=3, modalities=["text"], **OFF)
    assert chat.json()["usage"]["completion_tokens"] == 3
    assert server.completed(prompt="One two", **OFF | {"tools": None}) == "One two"


# A value of each parameter that OpenAI's client has, where a chat needs another than a completion
# in its place.
SAMPLES = {
    "model": MODEL,
    "audio": {"format": "mp3", "voice": "alloy"},
    "access_programs": {"cyber": "standard"},
    "background": False,
    "background_options": {"completion_window": "2h"},
    "best_of": 1,
    "context_management": [{"type": "compaction"}],
    "conversation": "conv_1",
    "echo": True,
    "frequency_penalty": 0.5,
    "function_call": "none",
    "functions": [{"name": "f"}],
    "image": {"context_compression": "auto"},
    "include": ["reasoning.encrypted_content"],
    "instructions": "Be brief.",
    "logit_bias": {"5": 1},
    "logprobs": 1,
    "max_completion_tokens": 3,
    "max_output_tokens": 3,
    "max_tokens": 3,
    "max_tool_calls": 2,
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "moderation": {"model": "omni-moderation-latest"},
    "n": 2,
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": [text_part("red")]},
    "presence_penalty": 0.5,
    "previous_response_id": "resp_1",
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "prompt_cache_retention": "24h",
    "reasoning": {"effort": "low", "summary": "auto"},
    "reasoning_effort": "low",
    "response_format": {"type": "json_object"},
    "safety_identifier": "s",
    "seed": 5,
    "service_tier": "auto",
    "stop": ["x"],
    "store": True,
    "stream": True,
    "suffix": "end",
    "temperature": 0.5,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "tool_choice": "auto",
    "tools": [function("f", {"type": "object"})],
    "top_p": 0.5,
    "truncation": "disabled",
    "user": "u",
    "verbosity": "low",
    "web_search_options": {"search_context_size": "low"},
}
OF_ENDPOINT = {
    ("chat/completions", "logprobs"): True,
    ("chat/completions", "top_logprobs"): 2,
    ("chat/completions", "stream_options"): {"include_usage": True},
    ("completions", "stream_options"): {"include_usage": True},
    ("completions", "prompt"): "One two",
    ("responses", "prompt"): {"id": "pmpt_1"},
    ("responses", "stream_options"): {"include_obfuscation": False},
    ("responses", "tools"): [{"type": "function", "name": "f"}],
    ("responses", "top_logprobs"): 0,
}
NEEDED = {"top_logprobs": {"logprobs": True}, "stream_options": {"stream": True}}


def parameter_table() -> list[tuple[str, str, str]]:
    """(endpoint, parameter, what is done with it) of docs/compatibility.md."""
    page = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    section = page.partition("## Every parameter")[2].partition("\n## ")[0]
    rows = [row.split("|")[1:-1] for row in section.splitlines() if row[:2] == "| "]
    endpoints = [cell.strip(" `") for cell in rows[0][1:]]
    return [
        (endpoint, name, cell.strip())
        for names, *cells in rows[2:]
        for name in re.findall(r"`(\w+)`", names)
        for endpoint, cell in zip(endpoints, cells, strict=True)
        if cell.strip()
    ]


def test_every_parameter_of_openais_client_is_on_the_page():
    from openai.types import completion_create_params as of_completions
    from openai.types.chat import completion_create_params as of_chat
    from openai.types.responses import response_create_params as of_responses

    kinds = {
        "chat/completions": of_chat.CompletionCreateParamsStreaming,
        "completions": of_completions.CompletionCreateParamsStreaming,
        "responses": of_responses.ResponseCreateParamsStreaming,
    }
    named = {(endpoint, name) for endpoint, name, _ in parameter_table()}
    assert named == {
        (endpoint, name) for endpoint, kind in kinds.items() for name in kind.__annotations__
    }


@pytest.mark.parametrize(("endpoint", "name", "what"), parameter_table())
def test_a_parameter_is_taken_or_refused_as_the_page_says(server, endpoint, name, what):
    needed = {
        "chat/completions": {"messages": [USER]},
        "completions": {"prompt": "Hi"},
        "responses": {"input": "Hi"},
    }
    body = needed[endpoint]
    if endpoint != "responses":
        body |= NEEDED.get(name, {})
    if name not in body:
        body[name] = OF_ENDPOINT.get((endpoint, name), SAMPLES.get(name))
    answer = server.post(f"/v1/{endpoint}", body)
    if what == "refused":
        check_error(answer, 400, name)
    else:
        assert what in ("used", "ignored") or what.startswith("only"), what
        assert answer.status_code == 200, answer.text


def test_thoughts_reach_the_template(server, tokenizer, set_template):
    set_template("x:{% for m in messages %} {{m.reasoning_content}}/{{ m.reasoning }}{% endfor %}")
    thoughts = [
        {"reasoning_content": "well"},
        {"reasoning": "hm"},
        {"reasoning": "old", "reasoning_content": "new"},
    ]
    messages = [assistant(None) | thought for thought in thoughts] + [USER]
    said = server.said(messages=messages)
    assert said == "x: well/well hm/hm new/new /"
    assert tokenizer.decode(tokens(server, messages=messages)) == said


def test_usage_in_every_chunk(server):
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
    chunks = server.completion(prompt="One two three four", stream=True, stream_options=options)
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts[0] == 1 and counts == sorted(counts) and counts[-1] == counts[-2]


@whole_and_streamed
def test_request_id(server, stream):
    extra = {"request_id": "abc-1"}
    answer = server.completion(prompt="One two", stream=stream, extra_body=extra)
    assert {part.id for part in (answer if stream else [answer])} == {"cmpl-abc-1"}


@whole_and_streamed
def test_echo(server, tokenizer, stream):
    prompts = ["One two", "Three four"]
    for given in (prompts, tokenizer(prompts)["input_ids"]):
        answer = server.completion(prompt=given, n=2, echo=True, stream=stream)
        texts = ["", "", "", ""]
        for part in answer if stream else [answer]:
            for choice in part.choices:
                texts[choice.index] += choice.text
        assert texts == ["One twoOne two"] * 2 + ["Three fourThree four"] * 2


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"stop": " three"}, "One two three"),
        ({"stop": ["wo th", "zzz"]}, "One two th"),
        ({"stop": "never"}, "One two three four"),
        ({"stop_token_ids": "three"}, "One two three"),
    ],
)
def test_stops_are_part_of_the_text_if_requested(either_server, tokenizer, body, text):
    if "stop_token_ids" in body:
        body = {"stop_token_ids": tokenizer(" three")["input_ids"]}
    body |= {"prompt": "One two three four", "include_stop_str_in_output": True}
    assert either_server.completed(**body) == text


def test_special_tokens_are_shown_if_requested(server):
    hidden, shown = (
        server.said(messages=[USER], skip_special_tokens=skip, max_tokens=3)
        for skip in (True, False)
    )
    assert shown == "<|im_start|>" + hidden


def tokens(server, **body) -> list[int]:
    answer = server.got("/tokenize", body)
    assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == MAX_MODEL_LEN
    return answer["tokens"]


def test_tokenize_and_detokenize(server, tokenizer):
    token_ids = tokens(server, prompt="One two")
    assert token_ids == tokenizer("One two")["input_ids"]
    assert server.got("/detokenize", {"tokens": token_ids}) == {"prompt": "One two"}
    assert tokens(server, messages=[USER]) == tokenizer.apply_chat_template(
        [USER], add_generation_prompt=True, return_dict=False
    )
    for path, body in (
        ("tokenize", {"prompt": "word " * 2**20}),
        ("detokenize", {"tokens": [10**6]}),
    ):
        assert server.post(f"/{path}", body).status_code == 400
    assert server.post("/tokenize", {"prompt": "a", "model": "other"}).status_code == 404


def test_the_last_message_may_be_continued(server, tokenizer):
    messages = [USER, assistant("Well, I")]
    token_ids = tokens(server, messages=messages, continue_final_message=True)
    prompt = server.got("/detokenize", {"tokens": token_ids})["prompt"]
    assert prompt.endswith("assistant\nWell, I")
    answer = server.conversation(
        messages=messages, max_tokens=2, extra_body={"continue_final_message": True}
    )
    assert answer.usage.prompt_tokens == len(token_ids)


def test_variables_of_the_chat_template(server, set_template):
    set_template("{{ greeting }} {{ messages[0].content }}")
    said = server.said(messages=[USER], chat_template_kwargs={"greeting": "Hey"})
    assert said == "Hey Hello there"


def test_version_and_ping(server):
    assert server.http.get("/version").json() == {"version": __version__}
    assert server.http.get("/ping").status_code == server.http.post("/ping").status_code == 200


def test_rules_on_single_tokens_reach_the_sampler(server, tokenizer, monkeypatch):
    seen = server.recorded(monkeypatch)
    rules = {"allowed_token_ids": [5, 6], "bad_words": ["sun", " moon"], "min_tokens": 2}
    server.completion(prompt="One two", logit_bias={"7": -100, "8": 2.5}, extra_body=rules)
    params = seen[0].params
    assert params.logit_bias == ((7, -100.0), (8, 2.5))
    assert (params.allowed_token_ids, params.min_tokens) == ((5, 6), 2)
    assert set(params.bad_words_token_ids) == {
        tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        for text in ("sun", " sun", " moon")
    }
    assert not server.core.scheduler.running


def test_min_tokens_is_too_early_for_stop_strings(server):
    body = {"prompt": "One two three two four", "stop": " two"}
    assert server.completed(**body) == "One"
    assert server.completed(**body, min_tokens=3) == "One two three"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {str(10**6): 1}),
        ("logit_bias", dict.fromkeys(map(str, range(2000)), 1)),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-1]),
        ("bad_words", [""]),
        ("bad_words", ["a"] * 129),
        ("min_tokens", -1),
        ("min_tokens", 17),
    ],
)
def test_bad_rules_are_named(server, field, value):
    answer = server.complete(prompt="a", **{field: value})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(field)
