"""Whether drafters are asked: in every step that pays for it, else within a budget."""

from dataclasses import replace

import numpy as np
import pytest
from drafter_cases import LOOKUP, MODEL
from factories import learn, make_outcome, make_view

from smartspec.control.controller import Controller
from smartspec.control.goodput.asking import ALL, MODEL_FREE, NOBODY, Asking
from smartspec.control.goodput.choice import Settled
from smartspec.control.goodput.exploration import size_of
from smartspec.control.goodput.policy import Goodput
from smartspec.control.goodput.settings import ExplorationSettings, GoodputSettings
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.policy import no_drafts
from smartspec.control.records import Drafted, DrafterView, StepSeconds

SETTINGS = ExplorationSettings()
TARGET, PLAIN, ASKED = 0.006, 0.0001, 0.0004  # seconds of a pass, and of the host without and with drafters


HOST = {NOBODY: PLAIN, MODEL_FREE: ASKED, ALL: 0.001}


def run(asking, num_steps, saved=0.0, rows=4, drafters=(LOOKUP,), saved_by_all=0.0, **view):
    """Whom each step asked; drafters without passes are expected to save so many seconds, all of them so many more."""
    asked = []
    for _ in range(num_steps):
        numbers = asking.numbers(rows, drafters)
        asked.append(max((ALL if drafters[number].has_passes else MODEL_FREE for number in numbers), default=NOBODY))
        seconds = StepSeconds(draft=0.0, target=TARGET, host=HOST[asked[-1]])
        brought = {NOBODY: 0.0, MODEL_FREE: saved, ALL: saved + saved_by_all}[asked[-1]]
        settled = Settled(None, None, is_planned=True, saved_seconds=brought)
        plan = replace(no_drafts(rows), queried=numbers, settled=settled)
        learn(asking, make_outcome(make_view(rows, **view), plan, seconds=seconds))
    return np.array(asked)


def test_where_nothing_is_saved_asking_takes_its_share_of_the_time():
    asking = Asking(SETTINGS)
    assert run(asking, 5).all(), "at first it may cost what a step takes"
    run(asking, 200)
    asked = run(asking, 5000) > 0
    assert asked.sum() * (ASKED - PLAIN) == pytest.approx(SETTINGS.share * 5000 * (TARGET + PLAIN), rel=0.05)
    assert asked.mean() < 0.1


def test_where_drafts_pay_for_it_every_step_asks():
    asking = Asking(SETTINGS)
    run(asking, 200)
    assert run(asking, 3000, saved=1.1 * (ASKED - PLAIN))[-2000:].all()


def test_one_good_step_pays_for_those_behind_it():
    asking = Asking(SETTINGS)
    run(asking, 300)
    while not asking.numbers(4, (LOOKUP,)):
        run(asking, 1)
    run(asking, 1, saved=10 * (ASKED - PLAIN))
    assert run(asking, 10).all() and not run(asking, 5).any()


def test_batch_sizes_have_their_own_price():
    asking = Asking(SETTINGS)
    run(asking, 300)
    assert not run(asking, 3).any()
    assert run(asking, 1, rows=64).all(), "nothing is known of this one"
    run(asking, 100, rows=64)
    assert not run(asking, 3, rows=64).any()
    for rows in (4, 64):
        assert price(asking, rows, MODEL_FREE) == pytest.approx(ASKED - PLAIN)


def price(asking, rows, level):
    return asking._sizes[size_of(rows)].price(level)


def test_steps_with_prefill_do_not_tell_what_asking_costs():
    asking = Asking(SETTINGS)
    run(asking, 100, num_prefills=1, prefill_tokens=100)
    assert price(asking, 4, MODEL_FREE) == 0.0


def test_without_a_budget_every_step_asks():
    assert (run(Asking(replace(SETTINGS, share=0.0)), 500) == MODEL_FREE).all()
    assert (run(Asking(replace(SETTINGS, share=0.0)), 500, drafters=(LOOKUP, MODEL)) == ALL).all()


@pytest.mark.parametrize(
    ("saved", "saved_by_all", "expected"),
    [
        (0.0, 0.0, NOBODY),
        (0.0004, 0.0, MODEL_FREE),
        (0.0007, 0.0003, MODEL_FREE),  # more than they take beside nobody, less than beside the others
        (0.0004, 0.0007, ALL),
        (0.0, 0.001, ALL),
    ],
)
def test_models_are_asked_where_they_save_more_than_the_others_do(saved, saved_by_all, expected):
    asking = Asking(SETTINGS)
    brings = {"saved": saved, "saved_by_all": saved_by_all, "drafters": (LOOKUP, MODEL)}
    run(asking, 1000, **brings)
    often = np.bincount(run(asking, 3000, **brings), minlength=3) / 3000
    assert often[expected] > 0.85, often


def test_models_alone_are_asked_where_they_pay():
    for saved, expected in ((0.0, NOBODY), (0.001, ALL)):
        asking = Asking(SETTINGS)
        run(asking, 500, drafters=(MODEL,), saved_by_all=saved)
        assert (run(asking, 1000, drafters=(MODEL,), saved_by_all=saved) == expected).mean() > 0.9


def test_a_policy_without_an_account_queries_all_drafters():
    latency, numbers = LatencyModel(CostCurve.linear(0.01, 0.001)), []
    query = lambda is_queried: numbers.append(is_queried) or DrafterView(np.full(3, 2 * is_queried))  # noqa: E731
    controller = Controller("fixed:2", 4, latency, drafters=(LOOKUP,), strict=True)
    plan = controller.plan(replace(make_view(3), queries=(query,)))
    assert numbers == [True] and plan.queried == {0} and plan.lengths.tolist() == [2, 2, 2]


@pytest.mark.parametrize(("acceptance", "share"), [(0.0, 0.0), (0.0, SETTINGS.share), (1.0, SETTINGS.share)])
def test_a_policy_asks_as_often_as_its_drafts_pay_for(acceptance, share):
    settings = GoodputSettings(exploration=ExplorationSettings(share=share))
    policy = Goodput(settings=settings)
    controller = Controller(policy, 4, LatencyModel(CostCurve.linear(0.004, 0.001)), drafters=(LOOKUP,), strict=True)
    asked = []
    for step in range(600):
        query = lambda is_queried: asked.append(is_queried) or DrafterView(np.full(4, 2 * is_queried))  # noqa: E731
        plan = controller.plan(replace(make_view(4, now=float(step)), queries=(query,)))
        verified = controller.cut(plan, Drafted(plan.lengths))
        accepted = (verified * acceptance).astype(int)
        target = 0.004 + 0.001 * (4 + int(verified.sum()))
        seconds = StepSeconds(draft=0.0, target=target, host=ASKED if asked[-1] else PLAIN)
        learn(controller, make_outcome(plan.view, plan, verified, accepted, seconds=seconds))
    often = np.mean(asked[300:])
    assert often == 1.0 if acceptance or not share else often < 0.15
