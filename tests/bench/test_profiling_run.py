"""A profiling run finds what the policies that read it need, and says so where it cannot."""

import json

import pytest
from lib import profiling_run

from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.log.decision import LogHeader
from smartspec.core.policy_names import parse_policy
from smartspec.sim.scenario import Scenario


@pytest.fixture(scope="module")
def of_head():
    scenario = Scenario(
        batch=1, drafter="head", acceptance="0.7", later_child_share=0.2, max_draft_tokens=5
    )
    return profiling_run.profile_of(profiling_run.simulated(scenario, sizes=(1, 256), steps=40))


def test_the_best_length_falls_with_the_number_of_requests(of_head):
    best = of_head["best_lengths"]
    assert list(best) == ["1", "256"]
    assert best["1"] > best["256"]


def test_acceptance_by_rank_is_that_of_the_ground_truth(of_head):
    first, second, third = of_head["acceptance_by_rank"][:3]
    assert first == pytest.approx(0.7, abs=0.02)
    assert second == pytest.approx(0.3 * 0.2, abs=0.02)
    assert third == pytest.approx(0.3 * 0.8 * 0.2, abs=0.02)


def test_policies_read_what_a_run_wrote(of_head, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(of_head))
    assert parse_policy(f"batch-table:{path}", 5)._lengths.tolist() == list(
        of_head["best_lengths"].values()
    )
    assert parse_policy(f"sequoia:{path}", 5)._by_rank.tolist() == of_head["acceptance_by_rank"]


def test_too_short_a_run_says_so():
    scenario = Scenario(batch=1, max_draft_tokens=1)
    with pytest.raises(ValueError, match="has 10 steps without prefill"):
        profiling_run.profile_of(profiling_run.simulated(scenario, sizes=(1,), steps=5))


def test_decision_logs_say_the_same_as_the_steps_that_they_record(tmp_path):
    scenario = Scenario(batch=1, drafter="lookup", max_draft_tokens=2)
    steps = profiling_run.simulated(scenario, sizes=(1, 4), steps=12)
    header = LogHeader(
        "toy",
        "fixed:2",
        2,
        (scenario.drafter_spec,),
        LatencyModel(CostCurve.linear(1e-2, 1e-4)).to_dict(),
    )
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([header.to_json(), *(step.to_json() for step in steps)]) + "\n")
    assert profiling_run.profile_of(profiling_run.recorded([path])) == profiling_run.profile_of(
        steps
    )
