"""Predicted outputs over HTTP, through OpenAI's client, on the real model: the same text, sooner,
and counted."""

import json

import pytest
from fake_server import (
    FakeServer,
    assistant,
    check_error,
    form_of,
    function,
    text_part,
    user,
)
from real_server import running_model

LINES = [f'    "retries_{number}": {number * 7 % 13},' for number in range(12)]
OLD = "settings = {\n" + "\n".join(LINES) + "\n}\n"
ASKED = user(f"Write this file again, every 3 as a 4:\n```python\n{OLD}```")
BEGUN = assistant("```python\nsettings = {\n" + "\n".join(LINES[:4]))
EDIT = {"messages": [ASKED, BEGUN], "temperature": 0, "max_tokens": 80}
CONTINUED = {"extra_body": {"add_generation_prompt": False, "continue_final_message": True}}


@pytest.fixture(scope="module")
def real_server():
    with running_model(policy="fixed:6", drafters=("prediction",), max_model_len=1024) as server:
        yield server


def edited(server: FakeServer, prediction: object = None, **options):
    given = {} if prediction is None else {"prediction": prediction}
    return server.conversation(**EDIT | given | options, **CONTINUED)


@pytest.fixture(scope="module")
def plain(real_server) -> str:
    answer = edited(real_server)
    assert answer.usage.completion_tokens_details is None
    return answer.choices[0].message.content


@pytest.fixture(scope="module")
def prediction(plain) -> dict:
    """What the model says, on every processor."""
    return {"type": "content", "content": plain}


def test_the_text_is_the_same_and_what_was_predicted_is_counted(real_server, plain, prediction):
    answer = edited(real_server, prediction)
    details = answer.usage.completion_tokens_details
    assert answer.choices[0].message.content == plain
    assert details.accepted_prediction_tokens > answer.usage.completion_tokens // 2
    assert details.rejected_prediction_tokens < details.accepted_prediction_tokens


@pytest.mark.parametrize(
    "content",
    [
        "Der schnelle braune Fuchs springt über den faulen Hund. " * 20,
        "",
        OLD[::-1],
        [
            text_part("\n" + LINES[4]),
            text_part("\n" + "\n".join(LINES[5:])),
        ],
    ],
    ids=["another language", "empty", "equal to nothing", "in parts"],
)
def test_no_prediction_changes_the_text(real_server, plain, content):
    answer = edited(real_server, {"type": "content", "content": content})
    assert answer.choices[0].message.content == plain


def test_a_stream_several_choices_and_sampling_have_it_too(real_server, plain, prediction):
    chunks = list(
        edited(real_server, prediction, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == plain
    usage = chunks[-1].usage
    assert usage.completion_tokens_details.accepted_prediction_tokens > usage.completion_tokens // 2
    sampled = {"n": 3, "temperature": 0.8, "seed": 5}
    with_it, without = edited(real_server, prediction, **sampled), edited(real_server, **sampled)
    assert [c.message.content for c in with_it.choices] == [
        c.message.content for c in without.choices
    ]
    details = with_it.usage.completion_tokens_details
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens > 0


def test_it_goes_together_with_grammars_and_tools(real_server):
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
    }
    prediction = {"type": "content", "content": '{"city": "Rome"} and more that no grammar allows'}
    options = {"messages": [user("Name a city")], "temperature": 0}
    form = options | {"response_format": form_of(schema)}
    assert real_server.said(**form) == real_server.said(**form, prediction=prediction)
    options |= {"tools": [function("weather", schema)], "tool_choice": "required"}
    (call,) = real_server.answered(**options, prediction=prediction).calls
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")


@pytest.mark.parametrize(
    ("prediction", "param", "words"),
    [
        ({"content": "a" * 1_000_000}, "prediction.content", "1000000 characters"),
        ({"content": "word " * 2000}, "prediction.content", "tokens, more than any answer"),
        ({}, "prediction.content", "required"),
        ({"type": "contents", "content": "a"}, "prediction.type", "content"),
    ],
)
def test_bad_predictions_are_refused_by_name(server, prediction, param, words):
    answer = server.chat(messages=[user("a")], prediction={"type": "content"} | prediction)
    check_error(answer, 400, param, words)
