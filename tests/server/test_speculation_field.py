"""The extra field `speculation` of both endpoints, through OpenAI's client; and failures of the
controller."""

from collections import Counter

import numpy as np
import openai
import pytest
from fake_core import FixedController
from fake_server import MODEL, running_server, user

from smartspec.control.safe_controller import SafeController

MESSAGES = [user("Hello")]
OPTIONS = {"workload_class": "code", "max_draft_tokens": 3, "weight": 2.5, "tpot_target_ms": 40}


def send(server, endpoint: str, speculation: object):
    body = {"model": MODEL, "max_tokens": 8, "extra_body": {"speculation": speculation}}
    if endpoint == "chat":
        return server.client.chat.completions.create(messages=MESSAGES, **body)
    return server.client.completions.create(prompt="One two three four five six", **body)


@pytest.fixture
def views(server, monkeypatch) -> list:
    """The views of the controller's decisions from now on."""
    seen, plan = [], server.core.controller.plan
    monkeypatch.setattr(
        server.core.controller, "plan", lambda view: seen.append(view) or plan(view)
    )
    return seen


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_options_reach_the_controller(server, views, endpoint):
    answer = send(server, endpoint, OPTIONS)
    assert answer.usage.completion_tokens > 1
    decoding = [view for view in views if view.num_rows]
    assert decoding
    for view in decoding:
        assert (
            view.class_ids[0] >= 1
            and view.weights.tolist() == [2.5]
            and view.extras["tpot_targets"].tolist() == [0.04]
        )
        assert view.row_caps[0] <= 3


def test_every_choice_of_a_call_has_them(server, views):
    body = {"speculation": {"weight": 3}}
    server.completion(prompt=["One two", "Three four"], n=2, max_tokens=4, extra_body=body)
    assert max(view.num_rows for view in views) == 4
    assert all((view.weights == 3.0).all() for view in views)


@pytest.mark.parametrize("speculation", [None, {}, {"weight": None, "max_draft_tokens": None}])
def test_null_and_nothing_mean_the_defaults(server, views, speculation):
    send(server, "completions", speculation)
    assert all((view.weights == 1.0).all() for view in views)
    assert all(np.isinf(view.extras.get("tpot_targets", np.inf)).all() for view in views)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize(
    ("speculation", "param", "words"),
    [
        ({"weight": 5e-324}, "speculation.weight", "greater than or equal to 0.01"),
        ({"weight": 1e6}, "speculation.weight", "less than or equal to 100"),
        ({"weight": "heavy"}, "speculation.weight", "number"),
        ({"max_draft_tokens": -1}, "speculation.max_draft_tokens", "greater than or equal to 0"),
        ({"max_draft_tokens": 2.5}, "speculation.max_draft_tokens", "integer"),
        ({"max_draft_tokens": 2**40}, "speculation.max_draft_tokens", "less than 2147483648"),
        ({"tpot_target_ms": 0}, "speculation.tpot_target_ms", "greater than 0"),
        ({"tpot_target_ms": -5}, "speculation.tpot_target_ms", "-5"),
        ({"tpot_target_ms": 1e-322}, "speculation.tpot_target_ms", "greater than 0.001"),
        ({"workload_class": ""}, "speculation.workload_class", "at least 1"),
        ({"workload_class": "x" * 65}, "speculation.workload_class", "at most 64"),
        ({"workload_class": 5}, "speculation.workload_class", "string"),
        ("fast", "speculation", "fast"),
    ],
)
def test_bad_options_are_answered_400_with_field_and_range(
    server, endpoint, speculation, param, words
):
    with pytest.raises(openai.BadRequestError) as caught:
        send(server, endpoint, speculation)
    error = caught.value.body
    assert error["param"] == param and error["type"] == "invalid_request_error"
    assert words in error["message"]


@pytest.mark.parametrize("policy", ["goodput", "adaserve"])
def test_targets_are_counted_as_met_or_missed(tokenizer, policy):
    with running_server(tokenizer, policy=policy) as server:
        send(server, "completions", {"tpot_target_ms": 3_600_000, "ttft_target_ms": 0.002})
        found = server.metrics()
    assert found['smartspec_objectives_total{objective="tpot",outcome="met"}'] == 1
    assert found['smartspec_objectives_total{objective="ttft",outcome="missed"}'] == 1


class FailingController(FixedController):
    def plan(self, view):
        raise ZeroDivisionError("nothing to divide by")


def test_a_failing_controller_is_counted_and_requests_are_served(tokenizer):
    with running_server(tokenizer) as server:
        server.core.controller = SafeController(
            FailingController(3), lambda text: None, retry_steps=1
        )
        answer = send(server, "completions", None)
        assert answer.choices[0].text.startswith("One two three")
        count = server.metrics()["smartspec_controller_errors_total"]
        assert count == server.core.controller.num_errors > 1
        state = server.http.get("/v1/speculation").json()
        assert state["controller_errors"] == {"ZeroDivisionError: nothing to divide by": count}


def test_ignored_input_is_counted_by_kind(tokenizer):
    with running_server(tokenizer) as server:
        controller = FixedController(3)
        controller.num_ignored = Counter(clock=2)
        server.core.controller = SafeController(controller, lambda text: None)
        send(server, "completions", None)
        controller.num_ignored["seconds"] += 3
        send(server, "completions", None)
        found = server.metrics()
        assert found['smartspec_ignored_input_total{kind="clock"}'] == 2
        assert found['smartspec_ignored_input_total{kind="seconds"}'] == 3
