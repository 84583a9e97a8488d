"""A server with forced acceptance: it says that its text is invalid, and promises nothing of it."""

import pytest
from fake_server import check_error, function, running_server, user
from real_server import running_model

from smartspec.cli.serve import ServerOptions, serve
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.server.openai.invalid_text import invalid_text_name

MESSAGES = [user("Hello")]
TOOL = function("f", {"type": "object", "properties": {}})


@pytest.fixture(scope="module")
def invalid_server(tokenizer):
    with running_server(tokenizer, forced_acceptance=0.7) as server:
        yield server


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", 0),
        ("logprobs", True),
        ("prompt_logprobs", 1),
        ("min_tokens", 3),
        ("bad_words", ["no"]),
        ("allowed_token_ids", [1, 2]),
        ("logit_bias", {"1": 2.0}),
        ("response_format", {"type": "json_object"}),
        ("tools", [TOOL]),
        ("prediction", {"type": "content", "content": "Hello"}),
    ],
)
def test_what_could_not_be_kept_is_refused_by_name(invalid_server, field, value):
    answer = invalid_server.chat(messages=MESSAGES, **{field: value})
    remedy = f"{field} could not be kept: leave it out"
    check_error(answer, 400, field, f"--forced-acceptance, so its text is invalid and {remedy}")


def test_completions_are_refused_their_logprobs_too(invalid_server):
    assert invalid_server.complete(prompt="Hello", logprobs=0).status_code == 400


def test_what_promises_nothing_is_answered(invalid_server):
    answer = invalid_server.chat(
        messages=MESSAGES, max_tokens=4, temperature=0.5, stop=["x"], ignore_eos=True
    )
    assert answer.status_code == 200
    assert invalid_server.http.get("/v1/speculation").json()["forced_acceptance"] == 0.7


def test_the_served_name_says_it():
    assert invalid_text_name("m", 0.7) == "m:invalid-text:forced-acceptance-0.7"


def test_another_server_has_no_such_field(server):
    assert "forced_acceptance" not in server.http.get("/v1/speculation").json()
    assert server.chat(messages=MESSAGES, max_tokens=2, seed=0).status_code == 200


def test_steps_are_not_speculated_on_with_invalid_text():
    with pytest.raises(
        ValueError, match="--forced-acceptance makes invalid text, which --speculator small"
    ):
        serve(**vars(ServerOptions(forced_acceptance=0.5, speculator="small")))


def test_the_engine_accepts_what_it_is_told_to():
    """On the real model, whose drafts for itself the target would accept: all of them or none,
    whatever it says."""
    accepted = []
    for forced in (1.0, 0.0):
        drafters = (DEFAULT_MODEL,)
        with running_model(
            policy="fixed:3", drafters=drafters, max_model_len=256, forced_acceptance=forced
        ) as server:
            server.chat(messages=MESSAGES, max_tokens=24, temperature=0, ignore_eos=True)
            counts = server.metrics()
        names = ("smartspec_accepted_tokens_total", "smartspec_verified_tokens_total")
        accepted.append(tuple(counts[name] for name in names))
    # the last draft is cut short
    assert accepted[0][0] == pytest.approx(accepted[0][1], abs=3) and accepted[0][1] > 10
    assert accepted[1][0] == 0 < accepted[1][1]
