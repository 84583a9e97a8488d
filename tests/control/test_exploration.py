"""Knowing costs: never more than the budget, and enough to notice what has changed."""

from dataclasses import replace

import numpy as np
import pytest
from drafter_cases import MODEL, estimates_of, lagging

from smartspec.control.controller import Controller
from smartspec.control.goodput.exploration import MAX_CREDIT_STEPS, ExplorationBudget, Spacing
from smartspec.control.goodput.policy import Goodput
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.records import BatchView, Drafted, DraftPlan, StepFeedback, StepSeconds

K, ROWS = 4, 16
INDEPENDENT = 0.5  # wandering of the number of requests, see policies.arrivals
TARGET = CostCurve(knots=(1.0, 16.0), slopes=(0.0002, 0.0012), constant=0.03)
CHEAP_TOKENS = CostCurve.linear(0.03, 0.0002)
DRAFT = CostCurve.linear(0.003, 0.00005)


def test_a_budget_is_a_share_of_time_and_is_not_hoarded():
    budget = ExplorationBudget(share=0.01)
    assert not budget.buy(0.001)
    assert budget.buy(0.0), "what costs nothing is always affordable"
    for _ in range(20):
        budget.earn(1.0)
    assert budget.credit == pytest.approx(0.2)
    assert budget.buy(0.1) and budget.credit == pytest.approx(0.1)
    for _ in range(10_000):
        budget.earn(1.0)
    assert budget.credit == MAX_CREDIT_STEPS


def test_a_first_look_is_affordable_as_soon_as_steps_are_known():
    budget = ExplorationBudget(share=0.01, credit=None)
    assert not budget.buy(0.001)
    budget.earn(2.0)
    assert budget.buy(1.9) and not budget.buy(1.9)


@pytest.mark.parametrize(("growth", "due"), [(2, [16, 48, 112, 240, 496, 1008]), (4, [16, 80, 336, 848])])
def test_steps_of_a_kind_become_rarer_at_every_batch_size_by_itself(growth, due):
    spacing, made = Spacing(growth), []
    for step in range(1100):
        if spacing.is_due(20):
            spacing.planned(20)
            made.append(step)
        spacing.observe(20, happened=False)
    assert made == due
    assert not spacing.is_due(40)


def play(acceptance_of_step, num_steps, seed=0, understated=1.0, target=TARGET, prefill=0):
    """A draft model with that acceptance by step (of all positions, or float [K]), beside so many prefill tokens in
    every step, under arrivals that are known to be open-loop; returns lengths, notes and relative goodput (to off) by
    step."""
    rng = np.random.default_rng(seed)
    profile = CostCurve(target.knots, tuple(s / understated for s in target.slopes), target.constant)
    controller = Controller("goodput", K, LatencyModel(profile, (DRAFT,)), drafters=(MODEL,), strict=True)
    if prefill:
        controller.policy._arrivals._wandering = INDEPENDENT
    ids = np.arange(ROWS)
    lengths, notes, relative = [], [], []
    for step in range(num_steps):
        view = BatchView(ids, np.full(ROWS, 50), np.full(ROWS, K), (lagging(ROWS),), now=float(step))
        if prefill:
            view = replace(view, num_prefills=1, prefill_tokens=prefill, prefill_context_tokens=prefill)
        plan = controller.plan_draft(view)
        keep = controller.plan_verify(view, plan, Drafted(plan.lengths))
        acceptance = np.broadcast_to(acceptance_of_step(step), K)
        hits = np.cumprod(rng.random((ROWS, K)) < acceptance, axis=1).sum(axis=1)
        accepted = np.minimum(hits, keep)
        depth, fed = int(keep.max(initial=0)), ROWS + prefill + int(keep.sum())
        seconds = np.array([depth * float(DRAFT.seconds(ROWS)), float(target.seconds(fed))])
        expected = ROWS + float((np.cumprod(acceptance) * (np.arange(K) < keep[:, None])).sum())
        relative.append(expected / seconds.sum() * float(target.seconds(ROWS)) / ROWS)
        draft_seconds, target_seconds = seconds * np.exp(0.02 * rng.standard_normal(2))
        feedback = StepFeedback(
            view, plan, plan.lengths, keep, np.minimum(keep, accepted + 1), accepted,
            int(accepted.sum()) + ROWS, StepSeconds(draft_seconds, target_seconds, 0.0),
        )  # fmt: skip
        controller.observe(feedback)
        lengths.append(keep.sum())
        notes.append(controller.policy.note)
    return np.array(lengths), notes, np.array(relative)


@pytest.mark.parametrize("seed", range(3))
def test_a_useless_draft_model_costs_hardly_more_than_none(seed):
    _, notes, relative = play(lambda step: 0.02, 1500, seed)
    assert relative[100:].mean() >= 1.0 - 0.01
    assert any(note and note.startswith("probe") for note in notes), "it must not be written off for ever"


@pytest.mark.parametrize("seed", range(3))
def test_a_draft_model_that_becomes_good_is_found_again(seed):
    lengths, _, relative = play(lambda step: 0.02 if step < 400 else 0.9, 1000, seed)
    assert (lengths[300:400] > 0).mean() < 0.5
    assert (lengths[900:] > 0).mean() > 0.9
    assert relative[900:].mean() > 1.11, "one token is worth 1.120, two, the best, 1.132"


@pytest.mark.parametrize("seed", range(3))
def test_beside_prefill_as_well(seed):
    """A busy server may not see a step without prefill for a long time."""
    lengths, notes, _ = play(lambda step: 0.02 if step < 100 else 0.9, 600, seed, target=CHEAP_TOKENS, prefill=200)
    assert (lengths[50:100] > 0).mean() < 0.5
    assert any(note and note.startswith("probe") for note in notes)
    assert (lengths[500:] > 0).mean() > 0.9


@pytest.mark.parametrize("prefill", [0, 200])
def test_requests_that_nobody_values_are_not_probed(prefill):
    view = BatchView(
        np.arange(ROWS), np.full(ROWS, 50), np.full(ROWS, K), (lagging(ROWS),),
        num_prefills=int(prefill > 0), prefill_tokens=prefill, prefill_context_tokens=prefill, weights=np.zeros(ROWS),
    )  # fmt: skip
    controller = Controller("goodput", K, LatencyModel(TARGET, (DRAFT,)), drafters=(MODEL,), strict=True)
    for _ in range(10):
        assert not controller.plan_draft(view).lengths.any()


@pytest.mark.parametrize("seed", range(3))
def test_non_speculative_steps_are_taken_and_become_rare(seed):
    _, notes, _ = play(lambda step: 0.8, 2000, seed)
    taken = [step for step, note in enumerate(notes) if note and note.startswith("non-speculative step")]
    assert len(taken) >= 3
    assert sum(step >= 1000 for step in taken) <= 4


def test_noise_at_the_second_token_does_not_keep_drafts_short_for_ever():
    bad, good = np.array([0.5, 0.1, 0.1, 0.1]), np.array([0.5, 0.8, 0.8, 0.8])
    num_found = 0
    for seed in range(8):
        lengths, notes, _ = play(lambda step: bad if step < 3 else good, 400, seed, target=CHEAP_TOKENS)
        assert (lengths[5:16] == ROWS).all(), "and nothing is learned of a second token there is not"
        longer = [step for step, note in enumerate(notes) if note and note.startswith("longer")]
        assert 2 <= len(longer) <= 6
        num_found += np.median(lengths[300:]) >= 2 * ROWS
    assert num_found >= 7, "without longer steps: never"


@pytest.mark.parametrize("note", [None, "longer drafts, to know what they are worth"])
def test_drafts_made_to_learn_from_are_verified_whole(note):
    """Others are cut where their confidence says that nothing will be accepted."""
    policy, lengths = Goodput(), np.full(ROWS, K)
    view = BatchView(np.arange(ROWS), np.full(ROWS, 50), lengths, (lagging(ROWS),))
    latency, survival = LatencyModel(TARGET, (DRAFT,)), np.full((ROWS, K), 1e-3)
    policy.plan_draft(view, estimates_of(latency, model=survival))
    policy.note = note
    drafted = Drafted(lengths, confidence=survival)
    kept = policy.plan_verify(view, DraftPlan(lengths, 0 * lengths), drafted, survival, latency)
    assert kept.tolist() == (lengths if note else 0 * lengths).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_a_profile_that_understates_drafts_by_far_does_not_lose_for_long(seed):
    _, _, relative = play(lambda step: 0.25, 600, seed, understated=3.0)
    assert relative[200:].mean() >= 0.985
