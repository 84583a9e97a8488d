"""Exploration: it happens, becomes rare, is paid for, and finds what has changed."""

import factories
import numpy as np
import pytest
from drafter_cases import MODEL, estimates_of

from smartspec.control import Controller, CostCurve, Drafted, LatencyModel, StepSeconds
from smartspec.control.goodput.policy import LONGER, NON_SPECULATIVE, Goodput, GoodputSettings
from smartspec.control.guard import MEMORY
from smartspec.control.policy import LEARN_STEPS
from smartspec.control.records import UNLIMITED
from smartspec.control.uniform import OTHER

K, ROWS = 4, 16
SHARE = GoodputSettings().share
TARGET = CostCurve(knots=(1.0, 16.0), slopes=(0.0002, 0.0012), constant=0.03)
CHEAP_TOKENS = CostCurve.linear(0.03, 0.0002)
DRAFT = CostCurve.linear(0.003, 0.00005)


class Run:
    """A draft model with that acceptance (of all positions, float [K], or either by step), beside
    so many prefill tokens.

    By step: lengths, int [steps, R]; notes; relative, goodput against that of plain decoding;
    credit. understated: by what factor the profile has the target's tokens too cheap. num_rows: by
    step.
    """

    def __init__(
        self, acceptance, num_steps, *, seed=0, policy="goodput", understated=1.0, target=TARGET,
        prefill=0, num_rows=lambda step: ROWS, max_draft_tokens=K, budget=UNLIMITED,
    ):  # fmt: skip
        self.rng, self.target, self.prefill = np.random.default_rng(seed), target, prefill
        self.max_draft_tokens, self.budget = np.broadcast_to(max_draft_tokens, ROWS), budget
        profile = CostCurve(
            target.knots, tuple(s / understated for s in target.slopes), target.constant
        )
        latency = LatencyModel(profile, (DRAFT,))
        self.controller = Controller(policy, K, latency, drafters=(MODEL,), strict=True)
        rate = acceptance if callable(acceptance) else lambda step: acceptance
        steps = [self.step(float(step), num_rows(step), rate(step)) for step in range(num_steps)]
        lengths, self.notes, relative, credit = zip(*steps, strict=True)
        self.lengths = np.array([np.pad(row, (0, ROWS - len(row))) for row in lengths])
        self.num_tokens, self.relative, self.credit = (
            self.lengths.sum(axis=1),
            np.array(relative),
            np.array(credit),
        )

    def steps_of(self, *notes):
        return np.flatnonzero([note in notes for note in self.notes])

    def step(self, now, num_rows, acceptance):
        view = factories.make_view(
            num_rows, lag=0, context_tokens=50, row_caps=self.max_draft_tokens[:num_rows],
            now=now, prefill=self.prefill, draft_token_budget=self.budget,
        )  # fmt: skip
        chains = factories.draw_chains(self.rng, acceptance, (num_rows, K))
        noise = np.exp(0.02 * self.rng.standard_normal(2))
        draft, fed = float(DRAFT.seconds(num_rows)), num_rows + self.prefill

        def seconds(keep):
            target = float(self.target.seconds(fed + int(keep.sum())))
            return np.array([int(keep.max(initial=0)) * draft, target])

        outcome = factories.play_step(
            self.controller,
            view,
            chains,
            lambda _, keep: {"seconds": StepSeconds(*(seconds(keep) * noise), 0.0)},
        )
        keep, plan = outcome.verified, outcome.plan
        survival = np.cumprod(np.broadcast_to(acceptance, K))
        expected = num_rows + float((survival * (np.arange(K) < keep[:, None])).sum())
        off_goodput = num_rows / seconds(0 * keep).sum()
        return (
            plan.lengths,
            plan.reason,
            expected / seconds(keep).sum() / off_goodput,
            self.controller.policy.state().get("seconds_for_trials", 0.0),
        )


def assert_trials_are_far_apart(run):
    gaps = np.diff([-1, *run.steps_of(NON_SPECULATIVE, LONGER)])
    assert len(gaps) >= 3 and (gaps >= MEMORY).all()


def test_trials_are_far_apart_also_where_drafts_pay():
    assert_trials_are_far_apart(Run(0.3, 3000, target=CHEAP_TOKENS))
    run = Run(0.7, 3000, target=CHEAP_TOKENS)
    assert_trials_are_far_apart(run)
    assert len(run.steps_of(NON_SPECULATIVE))


def test_every_batch_size_has_a_spacing_of_its_own():
    run = Run(0.8, 1200, num_rows=lambda step: ROWS if step < 1000 else ROWS // 4)
    explored = run.steps_of(NON_SPECULATIVE, LONGER)
    assert not ((explored > 900) & (explored < 1000)).any()
    assert ((explored >= 1000) & (explored < 1000 + 2 * MEMORY)).any()


@pytest.mark.parametrize(("seed", "acceptance"), [(0, 0.02), (1, 0.3), (2, 0.8)])
def test_what_is_spent_stays_under_the_share(acceptance, seed):
    """Credit is never overdrawn; what is lost against the steps around, as it turns out, is in the
    order of it."""
    run = Run(acceptance, 1500, seed=seed)
    assert (run.credit >= 0).all()
    explored = np.isin(np.arange(1500), run.steps_of(NON_SPECULATIVE, LONGER))
    usual = np.median(run.relative[~explored][-500:])
    assert (usual - run.relative[explored]).sum() <= 1.0 + 2 * SHARE * 1500


@pytest.mark.parametrize("seed", range(3))
def test_a_useless_draft_model_costs_hardly_more_than_none_and_is_retried(seed):
    run = Run(0.02, 1500, seed=seed, target=CHEAP_TOKENS)
    assert run.relative[100:].mean() >= 1.0 - 0.01
    tried = run.steps_of(LONGER)
    assert np.diff([0, *tried, 1500]).max() <= 8 * MEMORY, "it must not be written off for ever"
    assert_trials_are_far_apart(run)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("prefill", "num_bad", "num_steps"), [(0, 400, 1000), (200, 100, 600)], ids=["alone", "beside"]
)
def test_a_draft_model_that_becomes_good_is_found_again(seed, prefill, num_bad, num_steps):
    """Beside prefill, too: a busy server may not see a step without it for a long time."""
    rate = lambda step: 0.02 if step < num_bad else 0.9  # noqa: E731
    run = Run(rate, num_steps, seed=seed, prefill=prefill)
    assert (run.num_tokens[num_bad - 50 : num_bad] > 0).mean() < 0.5
    assert (run.num_tokens[-100:] > 0).mean() > 0.9
    if prefill:
        assert len(run.steps_of(LONGER)) and not len(run.steps_of(NON_SPECULATIVE))


def test_where_every_step_is_mixed_drafts_that_pay_are_explored_too():
    """A non-speculative step would be due first, and there is never one to be had."""
    run = Run(0.6, 1000, target=CHEAP_TOKENS, prefill=200)
    assert (run.num_tokens[200:] > 0).mean() > 0.9
    assert len(run.steps_of(LONGER)) >= 2 and not len(run.steps_of(NON_SPECULATIVE))


@pytest.mark.parametrize("prefill", [0, 200])
def test_requests_without_weight_are_not_drafted_for(prefill):
    view = factories.make_view(ROWS, lag=0, row_caps=K, weights=np.zeros(ROWS), prefill=prefill)
    controller = Controller(
        "goodput", K, LatencyModel(TARGET, (DRAFT,)), drafters=(MODEL,), strict=True
    )
    for _ in range(40):
        plan = controller.plan(view)
        assert not plan.lengths.any()
        factories.learn(controller, factories.make_outcome(view, plan))


def test_noise_at_the_second_token_does_not_keep_drafts_short_for_ever():
    bad, good = np.array([0.5, 0.1, 0.1, 0.1]), np.array([0.5, 0.8, 0.8, 0.8])
    rate = lambda step: bad if step < 2 * LEARN_STEPS else good  # noqa: E731
    for seed in range(4):
        run = Run(rate, 1000, seed=seed, target=CHEAP_TOKENS)
        later = run.num_tokens[2 * LEARN_STEPS : 3 * LEARN_STEPS]
        assert (later <= ROWS).all(), "and nothing is learned of a second token there is not"
        assert np.median(run.num_tokens[900:]) >= 2 * ROWS, "without longer drafts: never"


def test_drafts_made_to_learn_from_are_verified_whole():
    """Others are cut where their confidence says that nothing will be accepted."""
    policy, view = (
        Goodput(),
        factories.make_view(ROWS, lag=0, context_tokens=50, row_caps=K),
    )
    estimates = estimates_of(LatencyModel(CHEAP_TOKENS, (DRAFT,)), model=np.full((ROWS, K), 1e-3))
    plan = policy.plan(view, estimates)
    for _ in range(3 * MEMORY):
        if plan.reason == LONGER:
            break
        factories.learn(policy, factories.make_outcome(view, plan, accepted=0 * plan.lengths))
        plan = policy.plan(view, estimates)
    assert plan.reason == LONGER
    drafted = Drafted(plan.lengths, confidence=np.full((ROWS, K), 1e-3))
    assert policy.cut(plan, drafted, lambda: drafted.confidence).tolist() == plan.lengths.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_a_profile_that_understates_drafts_by_far_does_not_lose_for_long(seed):
    run = Run(0.25, 600, seed=seed, understated=3.0)
    assert run.relative[200:].mean() >= 0.985


@pytest.mark.parametrize("budget", [0, 3, 7, UNLIMITED])
def test_drafts_that_explore_stay_within_the_steps_budget(budget):
    """With little room there is little to gain from knowing."""
    run = Run(0.02, 1000, budget=budget, target=CHEAP_TOKENS)
    tried = run.lengths[run.steps_of(LONGER)]
    assert (tried.sum(axis=1) <= budget).all()
    assert len(tried) or budget < 7


def test_drafts_that_explore_have_an_allowed_length_where_all_share_one():
    run = Run(0.02, 1500, policy="uniform:2,4", target=CHEAP_TOKENS)
    tried = run.lengths[run.steps_of(OTHER)]
    assert len(tried) and np.isin(tried, [0, 2, 4]).all() and (tried == tried[:, :1]).all()


@pytest.mark.parametrize("num_opted_out", [8, ROWS])
def test_rows_that_may_not_draft_do_not_keep_the_others_from_being_tried(num_opted_out):
    caps = np.where(np.arange(ROWS) < num_opted_out, 0, K)
    run = Run(0.02, 1000, max_draft_tokens=caps, target=CHEAP_TOKENS)
    tried = run.lengths[run.steps_of(LONGER)]
    assert not tried[:, :num_opted_out].any()
    assert bool(len(tried)) == (num_opted_out < ROWS)
