"""The real controller, strict, in the real step loop: a sound record of every step, and nothing to
complain about."""

import numpy as np
import pytest
from drafter_cases import LOOKUP
from fakes import FakeExecutor, continuation

from smartspec.control import Controller, CostCurve, DecisionRecord, LatencyModel, SafeController
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.scheduler import Scheduler
from smartspec.core.speculation import NO_OPTIONS, SpeculationOptions

K = 5


def make_controller(policy: str = "goodput", strict: bool = True) -> Controller:
    latency = LatencyModel(CostCurve.linear(1.0, 0.2))
    return Controller(policy, K, latency, drafters=(LOOKUP,), strict=strict)


def make_core(controller, num_blocks: int = 24) -> EngineCore:
    scheduler = Scheduler(
        BlockManager(num_blocks, 4, 4), max_batched_tokens=16, max_model_len=64, max_draft_tokens=K
    )
    return EngineCore(scheduler, FakeExecutor(4), controller)


def make_requests() -> list[Request]:
    options = [NO_OPTIONS, SpeculationOptions("code", 2, 3.0, 0.1)]
    return [
        Request(
            i,
            [i, 1, 2, 3][: 1 + i % 4],
            SamplingParams(max_tokens=4 + 3 * i),
            seed=0,
            speculation=options[i % 2],
        )
        for i in range(8)
    ]


def serve(core: EngineCore, times: list[float] | None = None) -> int:
    """Serve all requests and check what they got; returns the number of steps. times: the clock,
    else 0, 1, 2, ..."""
    requests = make_requests()
    for request in requests:
        core.add_request(request)
    num_steps = 0
    while core.has_work:
        core.step(float(num_steps) if times is None else times[num_steps % len(times)])
        num_steps += 1
    for request in requests:
        prompt = request.tokens[: request.num_prompt_tokens].tolist()
        assert request.output_token_ids.tolist() == continuation(prompt, request.params.max_tokens)
    return num_steps


@pytest.mark.parametrize("policy", ["goodput", "fixed:4", "off"])
def test_every_step_yields_a_sound_record(policy):
    controller = make_controller(policy)
    records = []
    controller.on_record = records.append
    assert serve(make_core(controller)) == len(records)
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
    times = [5.0, 6.0, 3.0, 7.0]
    with pytest.raises(ValueError, match=r"clock: now is 3\.0, before 6\.0"):
        serve(make_core(make_controller()), times)
    controller = make_controller(strict=False)
    serve(make_core(controller), times)
    assert controller.num_ignored["clock"] > 1


def test_an_observer_that_fails_costs_drafts_but_no_request():
    controller = make_controller()

    def fail(record):
        raise RuntimeError("the observer failed")

    controller.on_record = fail
    safe = SafeController(controller, lambda text: None, retry_steps=3)
    serve(make_core(safe))
    assert safe.errors["RuntimeError: the observer failed"] > 1
