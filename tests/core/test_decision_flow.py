"""The real controller, strict, in the real step loop: a sound record of every step, and nothing to
complain about."""

import fakes
import numpy as np
import pytest
from drafter_cases import LOOKUP
from fakes import make_core, make_request

from smartspec.control import Controller, CostCurve, DecisionRecord, LatencyModel, SafeController
from smartspec.core.request import Request
from smartspec.core.speculation import NO_OPTIONS, SpeculationOptions

K = 5


def make_controller(policy: str = "goodput", strict: bool = True) -> Controller:
    latency = LatencyModel(CostCurve.linear(1.0, 0.2))
    return Controller(policy, K, latency, drafters=(LOOKUP,), strict=strict)


def make_requests() -> list[Request]:
    options = [NO_OPTIONS, SpeculationOptions("code", 2, 3.0, 0.1)]
    return [
        make_request(i, [i, 1, 2, 3][: 1 + i % 4], 4 + 3 * i, speculation=options[i % 2])
        for i in range(8)
    ]


def serve(controller, clock=float) -> int:
    """Serve all requests and check what they got; returns the number of steps."""
    return len(fakes.serve(make_core(controller, num_blocks=24), make_requests(), clock))


@pytest.mark.parametrize("policy", ["goodput", "fixed:4", "off"])
def test_every_step_yields_a_sound_record(policy):
    controller = make_controller(policy)
    records = []
    controller.on_record = records.append
    assert serve(controller) == len(records)
    assert sum(record.outcome.num_emitted for record in records) == sum(
        r.params.max_tokens for r in make_requests()
    )
    for record in records:
        again = DecisionRecord.from_json(record.to_json())
        assert again.to_json() == record.to_json()
    assert any(
        (record.view.weights > 1).any() and record.view.class_ids.any() for record in records
    )
    assert any(
        np.isfinite(record.view.extras.get("tpot_targets", np.inf)).any() for record in records
    )


def test_a_clock_that_goes_backwards_is_an_error_when_strict_and_counted_otherwise():
    clock = lambda step: [5.0, 6.0, 3.0, 7.0][step % 4]  # noqa: E731
    with pytest.raises(ValueError, match=r"clock: now is 3\.0, before 6\.0"):
        serve(make_controller(), clock)
    controller = make_controller(strict=False)
    serve(controller, clock)
    assert controller.num_ignored["clock"] > 1


def test_an_observer_that_fails_costs_drafts_but_no_request():
    controller = make_controller()

    def fail(record):
        raise RuntimeError("the observer failed")

    controller.on_record = fail
    safe = SafeController(controller, lambda text: None, retry_steps=3)
    serve(safe)
    assert safe.errors["RuntimeError: the observer failed"] > 1
