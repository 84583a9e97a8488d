"""The budget on numbers: queries and explorations within a share of time, and losses that are measured end in bounded
time."""

from dataclasses import replace

import numpy as np
import pytest
from drafter_cases import LOOKUP
from factories import learn, make_outcome, make_view

from smartspec.control.controller import Controller
from smartspec.control.goodput.budget import Budget, size_of
from smartspec.control.goodput.policy import Goodput
from smartspec.control.goodput.settings import BudgetSettings, GoodputSettings
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.records import Drafted, DrafterView, StepSeconds

ROWS = 8
SETTINGS = BudgetSettings()
TARGET, PLAIN, QUERIED = 0.006, 0.0001, 0.0004  # seconds of a pass, and of the host without and with queries


def compare(budget, seconds, off_seconds, gained_steps, rows=4, saved=TARGET, has_prefill=False):
    budget.compare(rows, seconds, off_seconds, gained_steps, saved, has_prefill)


def run(budget, num_steps, saved=0.0, rows=4, has_prefill=False):
    """bool [num_steps], which steps queried the drafters; drafts save so many seconds."""
    queried = []
    for _ in range(num_steps):
        queried.append(budget.can_query(rows))
        seconds = StepSeconds(draft=0.0, target=TARGET, host=QUERIED if queried[-1] else PLAIN)
        if saved and queried[-1]:
            off = 2 * TARGET + saved - budget._plain_host_seconds(size_of(rows))
            compare(budget, 2 * TARGET, off, 1.0, rows, saved, has_prefill)
        budget.settle(rows, seconds, queried=queried[-1], has_prefill=has_prefill)
    return np.array(queried)


def test_where_nothing_is_saved_queries_take_their_share_of_the_time():
    budget = Budget(SETTINGS)
    assert run(budget, 5).all(), "at first they may cost what a step takes"
    run(budget, 200)
    queried = run(budget, 5000)
    assert queried.sum() * (QUERIED - PLAIN) == pytest.approx(SETTINGS.share * 5000 * (TARGET + PLAIN), rel=0.05)
    assert queried.mean() < 0.1


def test_where_drafts_pay_for_it_every_step_queries_but_those_that_measure_the_price():
    budget = Budget(SETTINGS)
    run(budget, 200)
    queried = run(budget, 4 * SETTINGS.longest_spacing, saved=1.1 * (QUERIED - PLAIN))
    plain = np.flatnonzero(~queried[SETTINGS.longest_spacing :])
    assert len(plain) == 12 and (np.diff(plain)[::2] == 1).all(), "learning from a query is over in the second one"


def test_where_every_step_can_pay_the_price_is_known_all_the_same():
    budget = Budget(SETTINGS)
    assert not run(budget, SETTINGS.memory, saved=QUERIED)[-2:].any()
    assert budget._query_seconds(size_of(4)) == pytest.approx(QUERIED - PLAIN)


def test_a_token_is_worth_no_more_than_a_plain_step_without_queries_makes_it():
    """Else queries would raise the worth of what they find."""
    budget = Budget(SETTINGS)
    run(budget, 300)
    before = budget.for_queries[False]
    for _ in range(20 * SETTINGS.memory):  # twice the tokens in a pass of 1.5 times
        compare(budget, 1.5 * TARGET, 2 * TARGET, 1.0)
    assert budget.for_queries[False] - before == pytest.approx(20 * SETTINGS.memory * (TARGET / 2 + PLAIN), rel=0.01)


@pytest.mark.parametrize(("rows", "num_steps"), [(1, SETTINGS.least_steps), (2, 1), (64, 1)])
def test_queries_for_a_single_request_may_save_up_more(rows, num_steps):
    budget = Budget(SETTINGS)
    run(budget, 300, saved=2 * TARGET, rows=rows)
    assert budget.for_queries[rows == 1] == pytest.approx(num_steps * (TARGET + QUERIED), rel=0.05)
    assert budget.for_explorations <= TARGET + QUERIED


def test_savings_that_come_by_chance_do_not_end_queries_for_a_single_request():
    """One step of 16 saves 1.25 times what all their queries cost."""
    for seed in range(5):
        rng, budget = np.random.default_rng(seed), Budget(SETTINGS)
        queried = [run(budget, 1, saved=TARGET * (rng.random() < 1 / 16), rows=1)[0] for _ in range(5000)]
        assert np.mean(queried) > 0.95


def test_what_a_single_request_saves_does_not_pay_for_batches():
    budget = Budget(SETTINGS)
    run(budget, 300)
    run(budget, 300, saved=TARGET, rows=1)
    assert run(budget, 300).mean() < 0.1
    assert run(budget, 300, saved=TARGET, rows=1).mean() > 0.9


def test_one_good_step_pays_for_those_after_it():
    budget = Budget(SETTINGS)
    run(budget, 300)
    while not budget.can_query(4):
        run(budget, 1)
    run(budget, 1, saved=10 * (QUERIED - PLAIN))
    assert run(budget, 10).all() and not run(budget, 5).any()


def test_savings_that_do_not_come_pay_for_nothing():
    budget = Budget(SETTINGS)
    run(budget, 200)
    queried = []
    for _ in range(3000):
        queried.append(budget.can_query(4))
        if queried[-1]:  # a fifth fewer tokens than expected, and nothing is left of the gain
            compare(budget, 2 * TARGET, 2 * TARGET - PLAIN, 1.0, saved=TARGET / 5)
        seconds = StepSeconds(draft=0.0, target=TARGET, host=QUERIED if queried[-1] else PLAIN)
        budget.settle(4, seconds, queried=queried[-1], has_prefill=False)
    assert np.mean(queried[-2000:]) < 0.1


def test_a_bad_start_does_not_end_queries_that_pay_later():
    """The first drafts are longer than acceptance is worth. Losses are for the comparison to judge. As debts of the
    account of queries, they ended drafts for hundreds of steps."""
    budget = Budget(SETTINGS)
    for _ in range(16):
        compare(budget, 2 * TARGET, 1.6 * TARGET, 1.0, saved=TARGET / 2)
        budget.settle(4, StepSeconds(draft=0.0, target=TARGET, host=PLAIN), queried=True, has_prefill=False)
    assert run(budget, 40, saved=TARGET / 4).mean() > 0.9


def test_after_a_stall_of_the_machine_queries_go_on():
    budget = Budget(SETTINGS)
    run(budget, 300, saved=TARGET)
    compare(budget, 1000 * TARGET, 2 * TARGET, 1.0)
    assert run(budget, 100, saved=TARGET).mean() > 0.9


def test_batch_sizes_have_their_own_price():
    budget = Budget(SETTINGS)
    run(budget, 300)
    assert run(budget, 100).mean() < 0.1
    assert run(budget, 1, rows=64).all(), "nothing is known of this one"
    run(budget, 100, rows=64)
    assert run(budget, 100, rows=64).mean() < 0.1
    for rows in (4, 64):
        assert budget._query_seconds(size_of(rows)) == pytest.approx(QUERIED - PLAIN)


def test_steps_with_prefill_do_not_tell_what_queries_cost():
    budget = Budget(SETTINGS)
    run(budget, 100, has_prefill=True)
    assert budget._query_seconds(size_of(4)) == 0.0


def test_without_a_budget_every_step_queries():
    assert run(Budget(replace(SETTINGS, share=0.0)), 500).all()


def test_explorations_are_not_paid_twice():
    budget = Budget(SETTINGS)
    run(budget, 300)
    before = budget.for_queries[False]
    compare(budget, 2 * TARGET, TARGET, 0.0, saved=0.0)
    assert budget.for_queries[False] == before


def test_explorations_have_the_time_of_one_step_and_a_share_of_all_steps():
    budget = Budget(replace(SETTINGS, share=0.01))
    seconds = StepSeconds(draft=0.0, target=2.0, host=0.0)
    settle = lambda: budget.settle(4, seconds, queried=True, has_prefill=False)  # noqa: E731
    assert not budget.pay(0.1)
    settle()
    assert not budget.pay(2.1)
    assert budget.pay(2.0), "a first look is affordable as soon as steps are known"
    for _ in range(20):
        settle()
    assert not budget.pay(0.41) and budget.pay(0.39)
    for _ in range(10_000):
        settle()
    assert not budget.pay(2.1) and budget.pay(1.9), "it is not hoarded"


def play(budget, num_steps, gain, seed=0, off_every=16, off_seconds=0.05, understated=1.0):
    """Steps that speculate (or not, now and then) with that true gain; returns how many until the budget is overdrawn.

    understated: true time without drafts over the predicted one.
    """
    rng = np.random.default_rng(seed)
    true_off = off_seconds * understated
    for step in range(num_steps):
        noise = np.exp(0.03 * rng.standard_normal())
        if step % off_every == 0:
            budget.observe_plain(understated * noise, False)
            continue
        gained = rng.binomial(ROWS * 3, 0.4)
        seconds = (ROWS + ROWS * 3 * 0.4) / gain * true_off / ROWS * noise
        compare(budget, seconds, off_seconds * (1 + gained / ROWS), gained / ROWS, rows=ROWS)
        if budget.reason is not None:
            return step
    return None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("understated", [1.0, 0.5, 2.0])
def test_a_gain_is_left_alone_whatever_the_cost_model_says(seed, understated):
    assert play(Budget(SETTINGS), 1000, gain=1.05, seed=seed, understated=understated) is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("gain", "limit"), [(0.5, 40), (0.8, 60), (0.93, 150)])
def test_a_loss_overdraws_the_budget_in_bounded_time_and_is_explained(seed, gain, limit):
    budget = Budget(SETTINGS)
    run(budget, 1, rows=ROWS)
    step = play(budget, 400, gain=gain, seed=seed)
    assert step is not None and SETTINGS.memory / 3 <= step + 1 <= limit
    assert "against plain decoding" in budget.reason
    assert budget.num_trips == 1
    assert not budget.can_query(ROWS) and not budget.pay(0.0)


def test_a_debt_is_paid_by_plain_steps_and_doubles_with_the_next_one():
    budget, pauses = Budget(SETTINGS), []
    budget.settle(ROWS, StepSeconds(draft=0.0, target=TARGET, host=0.0), queried=False, has_prefill=False)
    for seed in range(3):
        assert play(budget, 400, gain=0.6, seed=seed) is not None
        step_seconds = -budget.for_explorations / SETTINGS.share / (SETTINGS.memory // 2 * 2**seed)
        seconds = StepSeconds(draft=0.0, target=step_seconds, host=0.0)
        num_steps = 0
        while budget.reason is not None:
            budget.settle(ROWS, seconds, queried=False, has_prefill=False)
            num_steps += 1
        assert budget.can_query(ROWS)
        pauses.append(num_steps)
    assert pauses == pytest.approx([SETTINGS.memory // 2, SETTINGS.memory, 2 * SETTINGS.memory], abs=1)


def test_a_debt_of_many_requests_is_not_paid_by_few():
    """What drafts lost at 64 requests says nothing of one: there, they are queried and explored again at once."""

    def in_debt():
        budget = Budget(SETTINGS)
        budget.observe_plain(1.0, has_prefill=False)
        for _ in range(SETTINGS.memory):
            compare(budget, 1.5 * TARGET, TARGET, 0.0, rows=64)
            budget.settle(64, StepSeconds(0.0, TARGET, PLAIN), queried=True, has_prefill=False)
            if budget.reason is not None:
                return budget
        raise AssertionError("half of the time was lost, and nothing was said")

    for rows, is_over in ((64, False), (48, False), (33, False), (1, True), (16, True)):
        budget = in_debt()
        budget.settle(rows, StepSeconds(0.0, TARGET, PLAIN), queried=False, has_prefill=False)
        assert (budget.reason is None) == is_over, rows
        assert budget.can_query(rows) == is_over, rows


def test_without_a_non_speculative_step_nothing_is_known_and_nothing_distrusted():
    budget = Budget(SETTINGS)
    for _ in range(200):
        compare(budget, 1.0, 0.05, 0.0)
    assert budget.reason is None


def test_prefill_time_is_not_held_against_drafts():
    """A step that is long because of its prefill emits few tokens a second with or without drafts."""
    budget = Budget(SETTINGS)
    for _ in range(25):
        budget.observe_plain(1.0, True)
        for _ in range(7):
            compare(budget, 1.002, 1.025, 0.5, has_prefill=True)
    assert budget.reason is None


def test_a_policy_without_a_budget_queries_all_drafters():
    latency, queries = LatencyModel(CostCurve.linear(0.01, 0.001)), []
    query = lambda is_queried: queries.append(is_queried) or DrafterView(np.full(3, 2 * is_queried))  # noqa: E731
    controller = Controller("fixed:2", 4, latency, drafters=(LOOKUP,), strict=True)
    plan = controller.plan(replace(make_view(3), queries=(query,)))
    assert queries == [True] and plan.queried and plan.lengths.tolist() == [2, 2, 2]


def test_off_looks_for_no_drafts():
    queries = []
    query = lambda is_queried: queries.append(is_queried) or DrafterView(np.full(3, 2 * is_queried))  # noqa: E731
    controller = Controller("off", 4, LatencyModel(CostCurve.linear(0.01, 0.001)), drafters=(LOOKUP,), strict=True)
    plan = controller.plan(replace(make_view(3), queries=(query,)))
    assert queries == [False] and not plan.queried and not plan.lengths.any()


@pytest.mark.parametrize(("acceptance", "share"), [(0.0, 0.0), (0.0, SETTINGS.share), (1.0, SETTINGS.share)])
def test_a_policy_queries_as_often_as_its_drafts_pay_for(acceptance, share):
    policy = Goodput(settings=GoodputSettings(budget=BudgetSettings(share=share)))
    controller = Controller(policy, 4, LatencyModel(CostCurve.linear(0.004, 0.001)), drafters=(LOOKUP,), strict=True)
    queries = []
    for step in range(600):
        query = lambda is_queried: queries.append(is_queried) or DrafterView(np.full(4, 2 * is_queried))  # noqa: E731
        plan = controller.plan(replace(make_view(4, now=float(step)), queries=(query,)))
        verified = controller.cut(plan, Drafted(plan.lengths))
        accepted = (verified * acceptance).astype(int)
        target = 0.004 + 0.001 * (4 + int(verified.sum()))
        seconds = StepSeconds(draft=0.0, target=target, host=QUERIED if queries[-1] else PLAIN)
        learn(controller, make_outcome(plan.view, plan, verified, accepted, seconds=seconds))
    often = np.mean(queries[2 * SETTINGS.memory : SETTINGS.longest_spacing - 2])  # between two looks at the price
    assert often == 1.0 if acceptance or not share else often < 0.15


def test_draft_prefill_is_compared_over_the_drafts_that_it_serves():
    """Twenty requests begin at once. Each draft prefill takes two plain steps, and every step's drafts save 0.8 of
    one: after sixty steps more is saved than was invested, but not after twenty."""
    budget = Budget(BudgetSettings())
    budget.observe_plain(1.0, False)
    for step in range(60):
        invested = 2.0 if step < 20 else 0.0
        seconds = budget.spread(1.0 + invested, invested)
        budget.compare(16, seconds, 1.8, 0.8, 0.8, False)
        assert budget.num_trips == 0, step


def test_all_of_an_investment_is_charged_in_the_end():
    budget = Budget(BudgetSettings())
    charged = [budget.spread(3.0, 2.0), *(budget.spread(1.0, 0.0) for _ in range(600))]
    assert charged[0] < 1.1 and sum(charged) == pytest.approx(601 + 2.0, abs=0.01)
