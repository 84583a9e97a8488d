"""Steady state: what is drawn agrees with its expectation; perfect estimates are worth the most;
phases, turnover."""

import numpy as np
import pytest

from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import make_static_load, simulate_static
from smartspec.sim.static_load import Phase


def run(policy: str, phases: list[Phase], **settings):
    return simulate_static(Scenario(policy=policy, batch=1, **settings), phases)


@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_expected_tokens_follow_the_closed_form_and_drawn_ones_follow_expectation(drafter):
    log = run("fixed:4", [Phase(300, 32)], drafter=drafter, acceptance="0.7")
    per_row = (1 - 0.7**5) / 0.3
    assert log.expected_emitted == pytest.approx(np.full(300, 32 * per_row))
    # 9,600 rows of standard deviation 1.6: four standard errors.
    assert log.emitted.sum() / log.num_rows.sum() == pytest.approx(per_row, abs=4 * 1.6 / 9600**0.5)
    assert log.seconds.sum() == pytest.approx(log.expected_seconds.sum(), rel=0.01)


@pytest.mark.parametrize("drafter", ["model", "lookup", "head"])
def test_perfect_estimates_are_worth_at_least_the_best_fixed_length(drafter):
    """Requests are alike, so that being fair to each changes nothing."""
    phases, settings = [Phase(30, 16)], {"drafter": drafter, "acceptance": "0.8"}
    fixed = [
        run(f"fixed:{length}", phases, **settings).expected_goodput() for length in range(1, 9)
    ]
    assert run("perfect-estimates", phases, **settings).expected_goodput() >= max(fixed) * (
        1 - 1e-9
    )
    off = run("off", phases, **settings)
    assert off.expected_goodput() < max(fixed)
    assert off.verified.sum() == 0 and (off.emitted == 16).all()


@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_perfect_outcomes_verify_no_wrong_token_and_are_worth_more_than_perfect_estimates(drafter):
    """Half of all drafts are worthless here, and only the outcome tells which."""
    phases, settings = [Phase(30, 64)], {"drafter": drafter, "acceptance": "0.5"}
    told, estimated = (
        run(policy, phases, **settings) for policy in ("perfect-outcomes", "perfect-estimates")
    )
    assert told.verified.sum() == told.emitted.sum() - told.num_rows.sum() > 0
    assert told.goodput() > 1.05 * estimated.goodput()


PUBLISHED = {"eagle1": {2: 2.10, 4: 2.39, 7: 2.47}, "eagle3": {2: 2.36, 4: 3.08, 7: 3.54}}


@pytest.mark.parametrize("head", PUBLISHED)
def test_published_heads_emit_as_many_tokens_a_step_as_published(head):
    """Over 2,000 requests and more of 200 tokens each, whose standard error is below 1 %."""
    for length, published in PUBLISHED[head].items():
        log = run(f"fixed:{length}", [Phase(800, 256, output_tokens=200)], acceptance=head)
        assert log.emitted.sum() / log.num_rows.sum() == pytest.approx(published, rel=0.02)


def test_lookup_finds_drafts_at_a_share_of_positions():
    log = run("fixed:1", [Phase(400, 64)], drafter="lookup", acceptance="0", found_share=0.3)
    assert log.verified.sum() / log.num_rows.sum() == pytest.approx(0.3, abs=0.02)


def test_policies_share_their_random_numbers():
    """One row whose drafts are sometimes accepted: at equal positions, longer drafts never emit
    fewer tokens."""
    settings = {"acceptance": "0.5/2/2", "drafter": "lookup"}
    emitted = [
        run(f"fixed:{length}", [Phase(1, 500)], **settings).emitted[0] for length in (0, 1, 2, 4, 8)
    ]
    assert emitted == sorted(emitted) and emitted[0] == 500
    single = [
        run(f"fixed:{length}", [Phase(1, 1)], seed=seed, **settings)
        for seed in range(40)
        for length in (2, 5)
    ]
    short, long = np.array([log.emitted[0] for log in single]).reshape(40, 2).T
    assert (np.minimum(long, 3) == short).all(), (
        "the first two draft tokens meet the same random numbers"
    )
    assert len(set(short)) == 3


def test_phases_change_load_and_workload():
    log = run(
        "fixed:3", [Phase(50, 4, (0,)), Phase(50, 40, (1,))], acceptance="1.0,0.0", drafter="lookup"
    )
    assert log.num_rows.tolist() == [4] * 50 + [40] * 50
    assert (log.emitted[:50] == 16).all() and (log.emitted[50:] == 40).all()
    assert log.phase.tolist() == [0] * 50 + [1] * 50


def test_classes_are_dealt_to_the_rows():
    log = run("fixed:2", [Phase(5, 10, (0, 1))], acceptance="1.0,0.0", drafter="lookup")
    assert (log.emitted == 5 * 3 + 5 * 1).all()


def lags(**phase) -> list[int]:
    """Of the draft model's KV after the text of the first row, step by step, while nothing is
    drafted."""
    scenario, found = Scenario(policy="off", batch=1, jitter=0.0), []
    load, controller = make_static_load(scenario, scenario.drafter_spec)
    plan = controller.plan
    controller.plan = lambda view: found.append(int(view.drafters[0].lag[0])) or plan(view)
    load.run(controller, [Phase(30, 4, **phase)])
    return found


def test_a_draft_model_that_pauses_has_more_to_catch_up():
    """What the draft model has not seen grows by a token a step, and is nothing for a new
    request."""
    assert lags() == [*range(30)]
    assert lags(output_tokens=10) == [step % 9 for step in range(30)]


def test_an_empty_phase_is_refused():
    with pytest.raises(ValueError, match="must be positive"):
        Phase(0, 4)
