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
    user,
    whole_and_streamed,
)

from smartspec import __version__

USER = user("Hello there")
HARMLESS = {
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "prompt_cache_key": "x",
    "safety_identifier": "y",
    "user": "z",
    "response_format": {"type": "text"},
    "logit_bias": {},
}
VLLMS = {
    "use_beam_search": False,
    "length_penalty": 1.0,
    "detokenize": True,
    "return_token_ids": False,
}


def test_fields_that_request_nothing(server):
    extra = {
        "extra_body": {
            "tools": [],
            "tool_choice": "none",
            "parallel_tool_calls": True,
            "modalities": ["text"],
        }
    }
    extra["extra_body"] |= {"best_of": 1} | VLLMS
    chat = server.conversation(messages=[USER], max_tokens=3, **HARMLESS, **extra)
    assert chat.usage.completion_tokens == 3
    completion = server.complete(prompt="One two", best_of=1, tools=None, **HARMLESS, **VLLMS)
    assert completion.json()["choices"][0]["text"] == "One two"


# A value of each parameter that OpenAI's client has, where a chat needs another than a completion
# in its place.
SAMPLES = {
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
    "prediction": {"type": "content", "content": [{"type": "text", "text": "red"}]},
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
    head, rows = (
        [cell.strip(" `") for cell in rows[0]],
        [row for row in rows[1:] if "---" not in row[0]],
    )
    return [
        (endpoint, name, cell.strip())
        for names, *cells in rows
        for name in re.findall(r"`(\w+)`", names)
        for endpoint, cell in zip(head[1:], cells, strict=True)
        if cell.strip()
    ]


def test_every_parameter_of_openais_client_is_on_the_page():
    from openai.types import completion_create_params as of_completions
    from openai.types.chat import completion_create_params as of_chat
    from openai.types.responses import response_create_params as of_responses

    kinds = {
        "chat/completions": (
            of_chat.CompletionCreateParamsBase,
            of_chat.CompletionCreateParamsStreaming,
        ),
        "completions": (
            of_completions.CompletionCreateParamsBase,
            of_completions.CompletionCreateParamsStreaming,
        ),
        "responses": (
            of_responses.ResponseCreateParamsBase,
            of_responses.ResponseCreateParamsStreaming,
        ),
    }
    named = {(endpoint, name) for endpoint, name, _ in parameter_table()}
    known = {
        (endpoint, name)
        for endpoint, both in kinds.items()
        for kind in both
        for name in kind.__annotations__
    }
    assert known == named


@pytest.mark.parametrize(("endpoint", "name", "what"), parameter_table())
def test_a_parameter_is_taken_or_refused_as_the_page_says(server, endpoint, name, what):
    needed = {
        "chat/completions": {"messages": [USER]},
        "completions": {"prompt": "Hi"},
        "responses": {"input": "Hi"},
    }
    body = (
        {"model": MODEL}
        | needed[endpoint]
        | (NEEDED.get(name, {}) if endpoint != "responses" else {})
    )
    if name not in body:
        body[name] = OF_ENDPOINT.get((endpoint, name), SAMPLES.get(name))
    answer = server.http.post(f"/v1/{endpoint}", json=body)
    if what == "refused":
        check_error(answer, 400, name)
    else:
        assert what in ("used", "ignored") or what.startswith("only"), what
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"prediction": "red"}, "prediction"),
        (
            {"prediction": {"type": "content", "content": [{"type": "image_url"}]}},
            "prediction.content",
        ),
        ({"prediction": {"type": "other", "content": "red"}}, "prediction.type"),
        (
            {"messages": [{"role": "assistant", "content": "a", "reasoning_content": 5}]},
            "messages[0].reasoning_content",
        ),
    ],
)
def test_the_shape_of_what_is_used_is_checked(server, body, param):
    answer = server.chat(**{"messages": [USER]} | body)
    check_error(answer, 400, param)


def test_thoughts_and_effort_reach_the_template(server, tokenizer, set_template):
    template = (
        "{{ reasoning_effort }}:{% for m in messages %} {{ m.reasoning_content }}/{{ m.reasoning "
        "}}{% endfor %}"
    )
    set_template(template)
    thoughts = [
        {"reasoning_content": "well"},
        {"reasoning": "hm"},
        {"reasoning": "old", "reasoning_content": "new"},
    ]
    messages = [assistant(None) | thought for thought in thoughts] + [USER]
    bodies = (
        {"reasoning_effort": "low"},
        {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "x"}},
    )
    for body, effort in zip(bodies, ("low", "x"), strict=True):
        said = server.said(messages=messages, **body)
        assert said == f"{effort}: well/well hm/hm new/new /"
        token_ids = server.http.post("/tokenize", json={"messages": messages} | body).json()[
            "tokens"
        ]
        assert tokenizer.decode(token_ids) == said
    response = server.client.responses.create(
        model=MODEL, input="Hi", reasoning={"effort": "high", "summary": "auto"}
    )
    assert response.output_text.startswith("high:")


def test_a_refusal_in_the_history_is_what_was_said(server, tokenizer):
    messages = [USER, {"role": "assistant", "content": None, "refusal": "No."}, USER]
    said = [USER, assistant("No."), USER]
    assert tokens(server, messages=messages) == tokens(server, messages=said)


def test_usage_in_every_chunk(server):
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
    body = {
        "model": MODEL,
        "prompt": "One two three four",
        "stream": True,
        "stream_options": options,
    }
    counts = [chunk.usage.completion_tokens for chunk in server.client.completions.create(**body)]
    assert counts[0] == 1 and counts == sorted(counts) and counts[-1] == counts[-2]


@whole_and_streamed
def test_request_id(server, stream):
    extra = {"extra_body": {"request_id": "abc-1"}}
    answer = server.completion(prompt="One two", stream=stream, **extra)
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
    answer = either_server.complete(
        prompt="One two three four", include_stop_str_in_output=True, **body
    )
    assert answer.json()["choices"][0]["text"] == text


def test_special_tokens_are_shown_if_requested(server):
    hidden, shown = (
        server.said(messages=[USER], skip_special_tokens=skip, max_tokens=3)
        for skip in (True, False)
    )
    assert shown == "<|im_start|>" + hidden


def tokens(server, **body) -> list[int]:
    answer = server.http.post("/tokenize", json=body).json()
    assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == MAX_MODEL_LEN
    return answer["tokens"]


def test_tokenize_and_detokenize(server, tokenizer):
    token_ids = tokens(server, model=MODEL, prompt="One two")
    assert token_ids == tokenizer("One two")["input_ids"]
    assert server.http.post("/detokenize", json={"tokens": token_ids}).json() == {
        "prompt": "One two"
    }
    assert tokens(server, messages=[USER]) == tokenizer.apply_chat_template(
        [USER], add_generation_prompt=True, return_dict=False
    )
    for path, body in (
        ("tokenize", {}),
        ("tokenize", {"prompt": "a", "messages": [USER]}),
        ("tokenize", {"prompt": "word " * 2**20}),
        ("detokenize", {"tokens": [10**6]}),
    ):
        assert server.http.post(f"/{path}", json=body).status_code == 400
    assert server.http.post("/tokenize", json={"prompt": "a", "model": "other"}).status_code == 404


def test_the_last_message_may_be_continued(server, tokenizer):
    messages = [USER, assistant("Well, I")]
    token_ids = tokens(server, messages=messages, continue_final_message=True)
    assert (
        server.http.post("/detokenize", json={"tokens": token_ids})
        .json()["prompt"]
        .endswith("assistant\nWell, I")
    )
    answer = server.conversation(
        messages=messages, max_tokens=2, extra_body={"continue_final_message": True}
    )
    assert answer.usage.prompt_tokens == len(token_ids)


def test_variables_of_the_chat_template(server, set_template):
    set_template("{{ greeting }} {{ messages[0].content }}")
    answer = server.chat(messages=[USER], chat_template_kwargs={"greeting": "Hey"})
    assert answer.json()["choices"][0]["message"]["content"] == "Hey Hello there"


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
    ("body", "param"),
    [
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {str(10**6): 1}}, "logit_bias"),
        ({"logit_bias": dict.fromkeys(map(str, range(2000)), 1)}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["a"] * 129}, "bad_words"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
    ],
)
def test_bad_rules_are_named(server, body, param):
    answer = server.complete(prompt="a", **body)
    assert answer.status_code == 400 and answer.json()["error"]["param"].startswith(param), (
        answer.text
    )
