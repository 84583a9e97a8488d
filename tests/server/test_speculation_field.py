"""The extra field `speculation` of both endpoints, through OpenAI's client; and failures of the
controller."""

from collections import Counter

import numpy as np
import openai
import pytest
from fake_core import FixedController
from fake_server import check_error, running_server, user

from smartspec.control.safe_controller import SafeController

MESSAGES = [user("Hello")]
OPTIONS = {"workload_class": "code", "max_draft_tokens": 3, "weight": 2.5, "tpot_target_ms": 40}


def send(server, endpoint: str, speculation: object):
    body = {"max_tokens": 8, "extra_body": {"speculation": speculation}}
    if endpoint == "chat":
        return server.conversation(messages=MESSAGES, **body)
    return server.completion(prompt="One two three four five six", **body)


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
        assert view.class_ids[0] >= 1 and view.row_caps[0] <= 3
        assert view.weights.tolist() == [2.5] and view.extras["tpot_targets"].tolist() == [0.04]


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
    ("field", "value", "words"),
    [
        ("weight", 5e-324, "greater than or equal to 0.01"),
        ("weight", 1e6, "less than or equal to 100"),
        ("max_draft_tokens", -1, "greater than or equal to 0"),
        ("max_draft_tokens", 2**40, "less than 2147483648"),
        ("tpot_target_ms", 0, "greater than 0"),
        ("tpot_target_ms", 1e-322, "greater than 0.001"),
        ("workload_class", "", "at least 1"),
        ("workload_class", "x" * 65, "at most 64"),
    ],
)
def test_bad_options_are_answered_400_with_field_and_range(server, endpoint, field, value, words):
    with pytest.raises(openai.BadRequestError) as caught:
        send(server, endpoint, {field: value})
    error = caught.value.body
    assert error["param"] == f"speculation.{field}" and error["type"] == "invalid_request_error"
    assert words in error["message"]


def test_options_are_an_object(server):
    check_error(server.complete(prompt="a", speculation="fast"), 400, "speculation", "fast")


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


def test_a_failing_controller_is_counted_and_requests_are_served(own_server):
    own_server.core.controller = SafeController(
        FailingController(3), lambda text: None, retry_steps=1
    )
    answer = send(own_server, "completions", None)
    assert answer.choices[0].text.startswith("One two three")
    count = own_server.metrics()["smartspec_controller_errors_total"]
    assert count == own_server.core.controller.num_errors > 1
    state = own_server.http.get("/v1/speculation").json()
    assert state["controller_errors"] == {"ZeroDivisionError: nothing to divide by": count}


def test_ignored_input_is_counted_by_kind(own_server):
    controller = FixedController(3)
    controller.num_ignored = Counter(clock=2)
    own_server.core.controller = SafeController(controller, lambda text: None)
    send(own_server, "completions", None)
    controller.num_ignored["seconds"] += 3
    send(own_server, "completions", None)
    found = own_server.metrics()
    assert found['smartspec_ignored_input_total{kind="clock"}'] == 2
    assert found['smartspec_ignored_input_total{kind="seconds"}'] == 3
