"""The real controller, strict, in the real step loop: a sound record of every step, and nothing to
complain about."""

import pytest
from drafter_cases import LOOKUP
from fakes import make_core, make_request, serve

from smartspec.control import Controller, CostCurve, DecisionRecord, LatencyModel
from smartspec.core.request import Request
from smartspec.core.speculation import NO_OPTIONS, SpeculationOptions

K = 5


def make_requests() -> list[Request]:
    options = [NO_OPTIONS, SpeculationOptions("code", 2, 3.0, 0.1)]
    return [
        make_request(i, [i, 1, 2, 3][: 1 + i % 4], 4 + 3 * i, speculation=options[i % 2])
        for i in range(8)
    ]


@pytest.mark.parametrize("policy", ["goodput", "fixed:4", "off"])
def test_every_step_yields_a_sound_record(policy):
    latency, records = LatencyModel(CostCurve.linear(1.0, 0.2)), []
    controller = Controller(policy, K, latency, drafters=(LOOKUP,), strict=True)
    controller.on_record = records.append
    assert len(serve(make_core(controller, num_blocks=24), make_requests())) == len(records)
    assert sum(record.outcome.num_emitted for record in records) == sum(
        r.params.max_tokens for r in make_requests()
    )
    for record in records:
        again = DecisionRecord.from_json(record.to_json())
        assert again.to_json() == record.to_json()
