"""What may be lost against plain decoding: queries and trials are paid, losses are noticed."""

from dataclasses import replace

import numpy as np
import pytest
from drafter_cases import LOOKUP
from factories import make_view, play_step

from smartspec.control import Controller, CostCurve, DrafterView, LatencyModel, StepSeconds
from smartspec.control.goodput.policy import Goodput, GoodputSettings
from smartspec.control.guard import LEAST_STEPS, LONGEST, MEMORY, Account, Guard, Queries

SHARE, ROWS = GoodputSettings().share, 4
# seconds of a pass, of the host without and with a query
TARGET, PLAIN, QUERIED = 0.006, 0.0001, 0.0004


def run(queries, num_steps, saved=0.0, rows=ROWS):
    """Steps that query where they can, each of which saves so many seconds; returns which did."""
    queried = []
    for _ in range(num_steps):
        queried.append(queries.can_query(rows))
        seconds = StepSeconds(0.0, TARGET, QUERIED if queried[-1] else PLAIN)
        queries.settle(rows, seconds, saved * queried[-1], queried[-1])
    return np.array(queried)


def test_queries_that_save_nothing_become_rare_and_those_that_pay_stay():
    queries = Queries(SHARE)
    assert run(queries, 1000)[-80:].mean() < 0.15
    assert run(queries, 600, saved=2 * (QUERIED - PLAIN))[-200:-4].mean() > 0.95, "found again"


def test_savings_that_come_by_chance_do_not_end_queries():
    """One step of 16 saves 1.25 times what all their queries cost."""
    for seed in range(5):
        rng, queries = np.random.default_rng(seed), Queries(SHARE)
        saved = 20 * (QUERIED - PLAIN)
        queried = [run(queries, 1, saved=saved * (rng.random() < 1 / 16))[0] for _ in range(3000)]
        assert np.mean(queried) > 0.95


def test_batch_sizes_have_their_own_price():
    queries = Queries(SHARE)
    run(queries, 600)
    assert run(queries, 1, rows=64).all(), "nothing is known of this one"
    assert run(queries, 1000, rows=64)[-80:].mean() < 0.15


def test_an_account_holds_the_time_of_a_step_and_earns_a_share():
    account = Account(0.01)
    assert not account.pay(0.1)
    account.earn(2.0)
    assert not account.pay(2.1) and account.pay(2.0)
    for _ in range(20):
        account.earn(2.0)
    assert not account.pay(0.41) and account.pay(0.39)
    for _ in range(10_000):
        account.earn(2.0)
    assert not account.pay(2.1) and account.pay(1.9), "it is not hoarded"


def play(guard, num_steps, gain, seed=0, off_every=16, off_seconds=0.05, understated=1.0):
    """Steps that speculate (or not, now and then) with that true gain; returns how many until
    drafts pause.

    understated: true time without drafts over the predicted one."""
    rng, true_off = np.random.default_rng(seed), off_seconds * understated
    for step in range(num_steps):
        noise = np.exp(0.03 * rng.standard_normal())
        if step % off_every == 0:
            guard.observe_plain(true_off * noise, off_seconds, False)
            continue
        gained = rng.binomial(ROWS * 3, 0.4) / ROWS
        seconds = (1 + 3 * 0.4) / gain * true_off * noise
        guard.compare(ROWS, seconds, off_seconds * (1 + gained), 0.0, False)
        if guard.reason(ROWS) is not None:
            return step
    return None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("understated", [1.0, 0.5, 2.0])
def test_a_gain_is_left_alone_whatever_the_cost_model_says(seed, understated):
    assert play(Guard(), 1000, gain=1.05, seed=seed, understated=understated) is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("gain", "limit"), [(0.5, 40), (0.8, 60), (0.93, 150)])
def test_a_loss_is_noticed_in_bounded_time_and_is_explained(seed, gain, limit):
    guard = Guard()
    step = play(guard, 400, gain=gain, seed=seed)
    assert step is not None and LEAST_STEPS <= step + 1 <= limit
    assert "against plain decoding" in guard.reason(ROWS)
    assert guard.num_trips == 1


def test_each_further_pause_is_twice_as_long():
    guard, pauses = Guard(), []
    for seed in range(3):
        assert play(guard, 400, gain=0.6, seed=seed) is not None
        num_steps = 0
        while guard.reason(ROWS) is not None:
            guard.observe_plain(0.05, 0.05, False)
            num_steps += 1
        pauses.append(num_steps)
    assert pauses == [MEMORY // 2, MEMORY, 2 * MEMORY]


def test_what_drafts_lost_at_a_size_says_nothing_of_few_requests():
    guard = Guard()
    guard.observe_plain(TARGET, TARGET, False)
    while guard.reason(64) is None:
        guard.compare(64, 1.5 * TARGET, TARGET, 0.0, False)
    found = {rows: guard.reason(rows) is None for rows in (64, 48, 33, 16, 1)}
    assert found == {64: False, 48: False, 33: False, 16: True, 1: True}


def test_without_a_non_speculative_step_nothing_is_known_and_nothing_distrusted():
    guard = Guard()
    for _ in range(200):
        guard.compare(ROWS, 1.0, 0.05, 0.0, False)
    assert guard.reason(ROWS) is None


def test_prefill_time_is_not_held_against_drafts():
    """A step that is long because of its prefill emits few tokens a second with or without
    drafts."""
    guard = Guard()
    for _ in range(25):
        guard.observe_plain(1.0, 1.0, True)
        for _ in range(7):
            guard.compare(ROWS, 1.002, 1.025, 0.0, True)
    assert guard.reason(ROWS) is None


def test_draft_prefill_is_compared_over_the_drafts_that_it_serves():
    """Twenty requests begin at once. Each draft prefill takes two plain steps, and every step's
    drafts save 0.8 of one: after sixty steps more is saved than was invested, but not after
    twenty."""
    guard = Guard()
    guard.observe_plain(1.0, 1.0, False)
    for step in range(60):
        invested = 2.0 if step < 20 else 0.0
        guard.compare(16, 1.0 + invested, 1.8, invested, False)
        assert guard.num_trips == 0, step


def queried_view(queries, num_drafted=2, **changes):
    """A view whose drafter notes whether it is queried, and then has drafts."""

    def query(is_queried):
        queries.append(is_queried)
        return DrafterView(np.full(ROWS, num_drafted * is_queried))

    return replace(make_view(ROWS, **changes), queries=(query,))


@pytest.mark.parametrize(("policy", "length"), [("fixed:2", 2), ("off", 0)])
def test_a_policy_without_a_budget_queries_all_drafters_or_none(policy, length):
    latency, queries = LatencyModel(CostCurve.linear(0.01, 0.001)), []
    controller = Controller(policy, 4, latency, drafters=(LOOKUP,), strict=True)
    plan = controller.plan(queried_view(queries))
    assert queries == [plan.queried] == [length > 0]
    assert plan.lengths.tolist() == [length] * ROWS


@pytest.mark.parametrize(("acceptance", "share"), [(0, 0.0), (0, SHARE), (1, SHARE)])
def test_a_policy_queries_as_often_as_its_drafts_pay_for(acceptance, share):
    policy = Goodput(settings=GoodputSettings(share=share))
    controller = Controller(
        policy, 4, LatencyModel(CostCurve.linear(0.004, 0.001)), drafters=(LOOKUP,), strict=True
    )
    queries = []

    def told(plan, verified):
        target = 0.004 + 0.001 * (4 + int(verified.sum()))
        return {"seconds": StepSeconds(0.0, target, QUERIED if queries[-1] else PLAIN)}

    for step in range(LONGEST):
        view = queried_view(queries, now=float(step))
        play_step(controller, view, np.full(ROWS, 2 * acceptance), told)
    # between two looks at the price
    often = np.mean(queries[LONGEST // 2 + 2 * MEMORY : LONGEST - 2])
    assert often == 1.0 if acceptance or not share else often < 0.15


def test_queries_are_back_soon_where_the_traffic_changes():
    """A query takes 6 ms. Drafts of one token save 4, so queries become rare; then drafts of four
    tokens save 16."""
    costly, queries = 0.006, []
    controller = Controller(
        Goodput(), 4, LatencyModel(CostCurve.linear(0.004, 0.001)), drafters=(LOOKUP,), strict=True
    )

    def told(plan, verified):
        target = 0.004 + 0.001 * (ROWS + int(verified.sum()))
        return {"seconds": StepSeconds(0.0, target, costly * queries[-1] + PLAIN)}

    def serve(num_steps, length):
        for _ in range(num_steps):
            view = queried_view(queries, now=float(len(queries)), num_drafted=length)
            play_step(controller, view, np.full(ROWS, length), told)
        return queries[-100:]

    assert np.mean(serve(1500, length=1)) < 0.2
    assert np.mean(serve(500, length=4)) > 0.9
