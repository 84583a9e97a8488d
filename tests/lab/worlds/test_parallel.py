"""PEARL in simulation: drafting beside verification, by its paper's arithmetic."""

import json

import pytest

from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import simulate, simulate_static
from smartspec.sim.static_load import Phase

TARGET_SECONDS = 0.04
ACCEPTANCE = 0.8


@pytest.fixture
def tokens_per_target_pass(tmp_path):
    """Of a policy and a way of drafting, when a draft pass takes that share of a target's."""

    def run(
        policy: str, drafting: str, draft_share: float, acceptance: float = ACCEPTANCE
    ) -> float:
        curves = (
            CostCurve.linear(TARGET_SECONDS, 0.0),
            (CostCurve.linear(draft_share * TARGET_SECONDS, 0.0),),
        )
        path = tmp_path / f"{draft_share}.json"
        path.write_text(json.dumps(LatencyModel(*curves).to_dict()))
        machine = {"hardware": str(path), "kv_tokens": 65536, "host_seconds": 0.0, "jitter": 0.0}
        load = {"batch": 32, "num_requests": 64, "prompt_tokens": 10, "output_tokens": 200}
        scenario = Scenario(
            policy=policy, drafting=drafting, acceptance=str(acceptance), **machine, **load
        )
        records = simulate(scenario).run.records
        seconds = sum(r.end_to_end_seconds - r.ttft_seconds for r in records)
        return sum(r.num_output_tokens - 1 for r in records) * TARGET_SECONDS / seconds

    return run


def formula(acceptance: float, length: int) -> float:
    """Tokens of an iteration: one in pre-verify, a truncated geometric number in post-verify, by
    the share of each."""
    per_post = (1 - acceptance**length) / (1 - acceptance)
    share = acceptance / (acceptance + 1 - acceptance**length)
    return 1 - share + share * per_post


@pytest.mark.parametrize("length", [2, 4, 8])
def test_tokens_of_a_step_follow_the_formula_of_the_two_modes(tokens_per_target_pass, length):
    assert tokens_per_target_pass(f"fixed:{length}", "parallel", 1 / length) == pytest.approx(
        formula(ACCEPTANCE, length), rel=0.03
    )


def test_it_gains_what_the_paper_says_where_drafting_takes_as_long_as_verifying(
    tokens_per_target_pass,
):
    """A quarter of a target's pass each, 4 tokens: 2.12 against 1.69 of the best length in turn."""
    serial = max(tokens_per_target_pass(f"fixed:{length}", "serial", 0.25) for length in (2, 3, 4))
    assert tokens_per_target_pass("fixed:4", "parallel", 0.25) / serial == pytest.approx(
        2.12 / 1.69, rel=0.04
    )


def test_it_gains_nothing_where_drafts_are_free(tokens_per_target_pass):
    """It has no token of the target's own after an accepted draft, and one test after a
    rejection."""
    assert tokens_per_target_pass("fixed:4", "parallel", 0.001) < tokens_per_target_pass(
        "fixed:4", "serial", 0.001
    )


def test_it_is_never_slower_than_plain_decoding_while_the_draft_hides_behind_the_target(
    tokens_per_target_pass,
):
    assert tokens_per_target_pass("fixed:4", "parallel", 0.25, 0.0) == pytest.approx(1.0, rel=1e-6)
    serial = tokens_per_target_pass("fixed:4", "serial", 0.25, 0.0)
    assert serial == pytest.approx(0.5, rel=0.01)


def test_a_draft_that_takes_longer_than_the_target_is_waited_for(tokens_per_target_pass):
    assert tokens_per_target_pass("fixed:4", "parallel", 0.5) == pytest.approx(
        formula(ACCEPTANCE, 4) / 2, rel=0.03
    )


@pytest.mark.parametrize("policy", ["off", "goodput", "hf", "specdec++", "perfect-estimates"])
def test_lengths_may_change_and_every_answer_ends_where_it_should(policy):
    load = {"rate": 20.0, "num_requests": 30, "output_tokens": 60}
    runs = [
        simulate(
            Scenario(
                policy=policy,
                drafting=drafting,
                draft_model="llama-3.2-1b",
                acceptance="0.7/4/2",
                **load,
            )
        )
        for drafting in ("serial", "parallel")
    ]
    lengths = [{r.prompt_id: r.num_output_tokens for r in one.run.records} for one in runs]
    assert lengths[0] == lengths[1] and len(lengths[0]) == 30


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"drafting": "both"}, "unknown drafting 'both': use serial, parallel, layer-parallel"),
        ({"drafting": "parallel"}, "give a draft_model"),
        ({"drafting": "parallel", "drafter": "head"}, "use drafter model"),
        (
            {"drafting": "parallel", "draft_model": "llama-3.2-1b", "draft_tensor_parallel": 1},
            "one device of its own",
        ),
    ],
)
def test_what_cannot_be_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        Scenario(batch=1, **wrong)


def test_steady_state_refuses_it():
    scenario = Scenario(batch=1, drafting="parallel", draft_model="llama-3.2-1b")
    with pytest.raises(ValueError, match="not simulated in steady state"):
        simulate_static(scenario, [Phase(1, 1)])


def test_goodput_plans_drafts_that_hide_beside_the_target():
    """It had 68 tokens per second where length 3 has 86, when each draft pass was planned as if it
    were waited for."""
    pair = {
        "model": "70b",
        "tensor_parallel": 4,
        "draft_model": "llama-3.1-8b",
        "acceptance": "0.8",
    }
    load = {"batch": 1, "num_requests": 8, "output_tokens": 150}
    seconds = {
        policy: simulate(
            Scenario(policy=policy, drafting="parallel", **pair, **load)
        ).summary.end_to_end_seconds.mean
        for policy in ("fixed:2", "fixed:3", "goodput")
    }
    assert seconds["goodput"] < 1.08 * min(seconds.values())
