"""What the two endpoints answer, through OpenAI's own client. The fake model repeats the prompt."""

from pathlib import Path

import pytest
from fake_core import OTHER_TOKEN_ID
from fake_server import (
    MAX_MODEL_LEN,
    MODEL,
    events_of,
    running_server,
    text_part,
    user,
    whole_and_streamed,
)

from smartspec.cli.serve import served_names


def test_a_model_of_several_names(tokenizer):
    """vLLM: --served-model-name. Answers and metrics have the first."""
    names = ("my-model", "gpt-4o-mini")
    with running_server(tokenizer, names=names) as server:
        assert [model.id for model in server.client.models.list()] == list(names)
        for name in names:
            assert server.client.models.retrieve(name).id == name
            assert server.complete(model=name, prompt="One").json()["model"] == names[0]
        assert server.complete(model=MODEL, prompt="One").status_code == 404
        assert 'model_name="my-model"' in server.http.get("/metrics").text


def test_the_name_of_a_folder_is_its_last_part(tmp_path, monkeypatch):
    (tmp_path / "a-model").mkdir()
    monkeypatch.chdir(tmp_path / "a-model")
    monkeypatch.setenv("HOME", str(tmp_path))
    for place in (
        str(tmp_path / "a-model"),
        f"{tmp_path}/a-model/",
        "~/a-model",
        ".",
        str(Path("..", "a-model")),
    ):
        assert served_names(None, place) == ("a-model",)
    assert served_names(None, "org/a-model") == ("org/a-model",) and served_names("x, y", ".") == (
        "x",
        "y",
    )
    for wrong in ("", "x,", "x,x"):
        with pytest.raises(ValueError, match="--served-model-name"):
            served_names(wrong, ".")


def test_what_a_request_leaves_out_is_the_checkpoints(tokenizer, monkeypatch):
    """vLLM: --generation-config auto. What a request says goes first, whatever the endpoint."""
    defaults = {"temperature": 0.6, "top_k": 7, "top_p": 0.9, "max_tokens": 5}
    chat = {"messages": [user("Hello there, you all, one and two")]}
    said, few = {"temperature": 1.0, "top_k": 0, "max_tokens": 9}, {"max_tokens": 3, "top_p": 0.8}
    with running_server(tokenizer, sampling_defaults=defaults) as server:
        seen = server.recorded(monkeypatch)
        for path, body, expected in (
            ("chat/completions", chat, defaults),
            ("chat/completions", chat | said, defaults | said),
            ("chat/completions", chat | {"temperature": None}, defaults),
            ("completions", {"prompt": "One two"}, defaults | {"max_tokens": 16}),
            ("responses", {"input": "Hello", "top_p": 1.0}, defaults | {"top_p": 1.0}),
            ("messages", chat | few, defaults | few),
        ):
            server.got(f"/v1/{path}", body)
            assert {name: getattr(seen[-1].params, name) for name in defaults} == expected
        answer = server.got("/v1/responses", {"input": "Hello"})
        assert (answer["temperature"], answer["top_p"]) == (0.6, 0.9)


def test_completion(server, tokenizer):
    answer = server.completion(prompt="One two three four", max_tokens=100)
    assert answer.choices[0].text == "One two three four"
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].logprobs is None
    num_tokens = len(tokenizer("One two three four")["input_ids"])
    assert answer.usage.prompt_tokens == num_tokens == answer.usage.completion_tokens - 1
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")


def test_chat_uses_the_template_and_the_whole_context(server, tokenizer):
    messages = [user([text_part("Hello "), text_part("there")])]
    answer = server.conversation(messages=messages)
    choice = answer.choices[0]
    plain = [user("Hello there")]
    prompt = tokenizer.apply_chat_template(plain, add_generation_prompt=True, tokenize=False)
    # The template's own end-of-turn token ends the repetition of the prompt.
    assert choice.message.content == prompt.split("<|im_end|>")[0].removeprefix("<|im_start|>")
    assert (choice.message.role, choice.finish_reason) == ("assistant", "stop")
    endless = server.conversation(messages=messages, extra_body={"ignore_eos": True, "min_p": 0.1})
    assert endless.usage.total_tokens == MAX_MODEL_LEN
    assert endless.choices[0].finish_reason == "length"


def test_a_character_cut_in_two_by_the_length_limit_is_left_out(server, tokenizer):
    num_tokens = len(tokenizer("ok 🎉")["input_ids"])
    assert server.completed(prompt="ok 🎉", max_tokens=num_tokens - 1) == "ok"


def test_stream_with_usage(server):
    options = {"include_usage": True}
    chunks = [*server.conversation(messages=[user("Hi")], stream=True, stream_options=options)]
    *said, last = chunks
    first, *others = (chunk.choices[0] for chunk in said)
    assert first.delta.role == "assistant" and not any(choice.delta.role for choice in others)
    assert others[-1].finish_reason == "stop" and not any(chunk.usage for chunk in said)
    assert last.choices == [] and last.usage.completion_tokens > 0
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_stream_is_server_sent_events_with_done_at_the_end(server):
    answer = server.complete(prompt="One two", stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("\n\ndata: [DONE]\n\n")
    assert {event["object"] for event in events_of(answer.text)} == {"text_completion"}


def test_several_choices(server):
    answer = server.completion(prompt=["One", "Two three"], n=2)
    texts = ["One", "One", "Two three", "Two three"]
    assert [(choice.index, choice.text) for choice in answer.choices] == [*enumerate(texts)]
    single = server.completion(prompt=["One", "Two three"])
    assert answer.usage.prompt_tokens == single.usage.prompt_tokens
    assert answer.usage.completion_tokens == 2 * single.usage.completion_tokens
    chunks = server.conversation(messages=[user("Hi")], n=2, stream=True)
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content
    assert texts[0] == texts[1] != ""


def test_prompt_logprobs_of_completions_are_in_every_choice(server, tokenizer):
    prompts = ["One two", [5], "three " * 100]
    body = {"prompt": prompts, "n": 2, "prompt_logprobs": 1, "max_tokens": 2}
    choices = server.complete(**body).json()["choices"]
    token_ids = [tokenizer(prompts[0])["input_ids"], prompts[1], tokenizer(prompts[2])["input_ids"]]
    for choice in choices:
        ids, found = token_ids[choice["index"] // 2], choice["prompt_logprobs"]
        assert found[0] is None and len(found) == len(ids)
        for token_id, entry in zip(ids[1:], found[1:], strict=True):
            text, other = tokenizer.decode([token_id]), tokenizer.decode([OTHER_TOKEN_ID])
            assert entry == {
                str(token_id): {"logprob": -0.5, "rank": 2, "decoded_token": text},
                str(OTHER_TOKEN_ID): {"logprob": -0.25, "rank": 1, "decoded_token": other},
            }
    assert "prompt_logprobs" not in server.complete(prompt="One").json()["choices"][0]


def test_prompt_logprobs_of_a_chat_are_beside_its_choices(server):
    answer = server.chat(messages=[user("Hello")], prompt_logprobs=0, max_tokens=2).json()
    assert (
        len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
        and answer["prompt_logprobs"][0] is None
    )
    assert all(len(entry) == 1 for entry in answer["prompt_logprobs"][1:])


@whole_and_streamed
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("gamma delta", "alpha beta "),
        (["zeta", "ta ga"], "alpha be"),
        (["nothing", "delta epsilonX"], "alpha beta gamma delta epsilon"),
        ("a", ""),
    ],
)
def test_stop_strings(either_server, stream, stop, expected):
    text = "alpha beta gamma delta epsilon"
    answer = either_server.completion(prompt=text, max_tokens=64, stop=stop, stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == expected
    assert choices[-1].finish_reason == "stop"


def test_tokens_after_a_stop_string_do_not_count(server, burst_server):
    body = {"prompt": "alpha beta gamma delta epsilon", "stop": " gamma", "max_tokens": 64}
    plain, burst = (s.completion(**body).usage for s in (server, burst_server))
    assert plain.completion_tokens == burst.completion_tokens < plain.prompt_tokens


def test_stop_token_text_is_not_part_of_the_output(server, tokenizer):
    token_ids = tokenizer("alpha beta gamma")["input_ids"]
    extra = {"stop_token_ids": [token_ids[-1]]}
    answer = server.completion(prompt=token_ids, extra_body=extra)
    assert answer.choices[0].text == tokenizer.decode(token_ids[:-1])
    assert answer.choices[0].finish_reason == "stop"
