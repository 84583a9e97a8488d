"""Steady state: what is drawn agrees with its expectation; perfect estimates are worth the most;
phases, turnover."""

import numpy as np
import pytest

from smartspec.sim.scenario import Scenario
from smartspec.sim.simulated_drafter import stop_early
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


def test_phases_change_load_and_workload():
    """Classes are dealt to the rows of a phase."""
    phases = [Phase(50, 4, (0,)), Phase(50, 40, (1, 0))]
    log = run("fixed:3", phases, acceptance="1.0,0.0", drafter="lookup")
    assert log.num_rows.tolist() == [4] * 50 + [40] * 50
    assert (log.emitted[:50] == 16).all() and (log.emitted[50:] == 20 + 80).all()


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


def test_a_stop_rule_ends_drafts_after_the_token_it_saw():
    calls = []

    def stop(depth, rows, confidence, entropy):
        calls.append((depth, rows.tolist()))
        assert (entropy == 1 - confidence).all()
        return confidence < 0.5

    confidence = np.array(
        [[0.9, 0.4, 0.9, 0.9], [0.4, 0.9, 0.9, 0.9], [0.9, 0.9, 0.9, 0.9], [0.1, 0.1, 0.1, 0.1]]
    )
    drafted = stop_early(stop, np.array([4, 4, 3, 0]), confidence, 1 - confidence)
    assert drafted.tolist() == [2, 1, 3, 0]
    assert calls == [(0, [0, 1, 2]), (1, [0, 2]), (2, [2])]
