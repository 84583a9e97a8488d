"""Steady state: what is drawn agrees with its expectation, perfect estimates have no regret, phases and turnover, and
nothing depends on what is merely logged."""

import numpy as np
import pytest

from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import simulate_static
from smartspec.sim.static_load import Phase


def run(policy: str, phases: list[Phase], *, with_best: bool = True, **settings):
    return simulate_static(Scenario(policy=policy, batch=1, **settings), phases, with_best=with_best)


@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_expected_tokens_follow_the_closed_form_and_drawn_ones_follow_expectation(drafter):
    log = run("fixed:4", [Phase(300, 32)], drafter=drafter, acceptance="0.7")
    per_row = (1 - 0.7**5) / 0.3
    assert log.expected_emitted == pytest.approx(np.full(300, 32 * per_row))
    # 9,600 rows of standard deviation 1.6: four standard errors.
    assert log.emitted.sum() / log.num_rows.sum() == pytest.approx(per_row, abs=4 * 1.6 / 9600**0.5)
    assert log.seconds.sum() == pytest.approx(log.expected_seconds.sum(), rel=0.01)


@pytest.mark.parametrize("drafter", ["model", "lookup", "head"])
def test_perfect_estimates_have_no_regret_and_others_have(drafter):
    phases = [Phase(30, 16)]
    assert run("perfect-estimates", phases, drafter=drafter, acceptance="0.8/8").regret() == pytest.approx(0, abs=1e-12)
    off = run("off", phases, drafter=drafter, acceptance="0.8/8")
    assert off.regret(slice(0, 1)) > 0.2
    assert off.verified.sum() == 0 and (off.emitted == 16).all()


PUBLISHED = {"eagle1": {2: 2.10, 4: 2.39, 7: 2.47}, "eagle3": {2: 2.36, 4: 3.08, 7: 3.54}}


@pytest.mark.parametrize("head", PUBLISHED)
def test_published_heads_emit_as_many_tokens_a_step_as_published(head):
    """Over 2,000 requests and more of 200 tokens each, whose standard error is below 1 %."""
    for length, published in PUBLISHED[head].items():
        log = run(f"fixed:{length}", [Phase(800, 256, output_tokens=200)], acceptance=head, with_best=False)
        assert log.emitted.sum() / log.num_rows.sum() == pytest.approx(published, rel=0.02)


def test_lookup_finds_drafts_at_a_share_of_positions():
    log = run("fixed:1", [Phase(400, 64)], drafter="lookup", acceptance="0", found_share=0.3, with_best=False)
    assert log.verified.sum() / log.num_rows.sum() == pytest.approx(0.3, abs=0.02)


def test_policies_share_their_random_numbers():
    """One row whose drafts are sometimes accepted: at equal positions, longer drafts never emit fewer tokens."""
    settings = {"acceptance": "0.5/2/2", "drafter": "lookup", "with_best": False}
    emitted = [run(f"fixed:{length}", [Phase(1, 500)], **settings).emitted[0] for length in (0, 1, 2, 4, 8)]
    assert emitted == sorted(emitted) and emitted[0] == 500
    single = [run(f"fixed:{length}", [Phase(1, 1)], seed=seed, **settings) for seed in range(40) for length in (2, 5)]
    short, long = np.array([log.emitted[0] for log in single]).reshape(40, 2).T
    assert (np.minimum(long, 3) == short).all(), "the first two draft tokens meet the same random numbers"
    assert len(set(short)) == 3


def test_logging_the_best_plan_changes_nothing():
    phases = [Phase(60, 8)]
    watched, unwatched = (run("goodput", phases, with_best=flag) for flag in (True, False))
    assert (watched.emitted == unwatched.emitted).all() and (watched.seconds == unwatched.seconds).all()
    assert np.isnan(unwatched.best_seconds).all()


def test_phases_change_load_and_workload():
    log = run("fixed:3", [Phase(50, 4, (0,)), Phase(50, 40, (1,))], acceptance="1.0,0.0", drafter="lookup")
    assert log.num_rows.tolist() == [4] * 50 + [40] * 50
    assert (log.emitted[:50] == 16).all() and (log.emitted[50:] == 40).all()
    assert log.phase.tolist() == [0] * 50 + [1] * 50


def test_classes_are_dealt_to_the_rows():
    log = run("fixed:2", [Phase(5, 10, (0, 1))], acceptance="1.0,0.0", drafter="lookup")
    assert (log.emitted == 5 * 3 + 5 * 1).all()


def test_a_draft_model_that_pauses_has_more_to_catch_up():
    """With nothing drafted, what the draft model has not seen grows, and the true best plan becomes slower."""
    log = run("off", [Phase(200, 64)], acceptance="0.8", jitter=0.0)
    best = log.best_emitted / log.best_seconds
    assert best[-1] < best[0]
    replaced = run("off", [Phase(200, 64, output_tokens=20)], acceptance="0.8", jitter=0.0)
    assert (replaced.best_emitted / replaced.best_seconds).min() > best[-1]


def test_throttling_slows_steps_from_its_second_on():
    log = run("off", [Phase(200, 4)], throttle=((0.5, 2.0),), jitter=0.0, host_seconds=0.0, with_best=False)
    starts = np.concatenate([[0.0], np.cumsum(log.seconds)[:-1]])
    assert log.seconds[starts >= 0.5] == pytest.approx(2 * log.seconds[0])
    assert log.seconds[starts < 0.5] == pytest.approx(log.seconds[0])
    assert (starts >= 0.5).any()


def test_an_empty_phase_is_refused():
    with pytest.raises(ValueError, match="must be positive"):
        Phase(0, 4)
