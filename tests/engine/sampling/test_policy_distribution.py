"""Whatever a policy makes of what it has seen, texts have the target's distribution: chi-square
tests of every policy. That texts are independent of each other: control/test_joint_distribution.py.

The target goes round in circles of four tokens. In each the drafter is mostly wrong about the first
one, and after it stands a fork, FIRST or SECOND, evenly: at the same position, whatever was before
it. Which one was drawn shows in what is drafted after it (the drafter is sure of one path and knows
nothing of the other), in how long drafts become, and in the time that they take. After the
rejection the fork is drafted again.
"""

from dataclasses import replace

import numpy as np
import pytest
from markov_engine import TableExecutor, TableHead, TableRunner, p_of_transitions, serve

from smartspec.control.goodput.policy import Goodput
from smartspec.control.planning import length_caps, plan_by
from smartspec.control.policy import Policy
from smartspec.core.policy_names import POLICIES, parse_policy, published_policies
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.drafters.prompt_lookup import PromptLookupDrafter
from smartspec.engine.drafting.model.drafter import DraftModel
from smartspec.engine.sampling import sampler

START, WRONG, RIGHT, FIRST, SECOND, SURE, FLAT = 0, 1, 2, 3, 4, 5, slice(6, 10)
VOCABULARY, CIRCLE, BATCH, K = 10, 4, 32, 6
LEAST = 1e-4  # of the p-values of right texts one in ten thousand is smaller
BIASED = 1e-8

# Each name with what brings its thresholds to where the tables are: confidence 0.5 at the fork,
# 0.25 or 1 after it.
SETTINGS = [
    *(
        "fixed:3",
        "uniform:1,3",
        "hf:0.45",
        "gammatune:0.45",
        "specdec++:0.6",
        "adaedl:0.36",
        "dsde:1",
    ),
    *(
        "adaserve:40",
        "adaserve:96",
        "eagle2:6",
        "ddd:0.5",
        "sequoia:4",
        "smartspec-paper:2",
        "smartspec-request:2",
    ),
]


def tables() -> tuple[np.ndarray, np.ndarray]:
    """Of the target and of the drafter."""
    target, draft = np.zeros((2, VOCABULARY, VOCABULARY))
    target[START, [RIGHT, WRONG]] = 0.7, 0.3
    draft[START, [RIGHT, WRONG]] = 0.2, 0.8
    for table in (target, draft):
        for after_start in (RIGHT, WRONG):
            table[after_start, [FIRST, SECOND]] = 0.5
        table[FIRST, SURE] = 1.0
        table[[SURE, *range(VOCABULARY)[FLAT]], START] = 1.0
    target[SECOND, FLAT] = 0.4, 0.3, 0.2, 0.1
    draft[SECOND, FLAT] = 0.25
    return target, draft


class Sometimes:
    """A drafter that has no draft at some places of the texts."""

    def __init__(self, drafter, remainder: int):
        self._drafter, self._remainder = drafter, remainder

    def __getattr__(self, name):
        return getattr(self._drafter, name)

    def view(self, batch, is_queried=True):
        view = self._drafter.view(batch, is_queried)
        has_draft = [
            (r.num_tokens // 2 + r.request_id) % 3 != self._remainder for r in batch.decoding
        ]
        return replace(view, lengths=np.where(has_draft, view.lengths, 0))


def drafters_of(names: str) -> list:
    draft = tables()[1]
    made = {
        "lookup": lambda: PromptLookupDrafter(max_draft_tokens=K),
        "model": lambda: DraftModel(TableRunner(draft), BATCH),
        "head": lambda: TableHead(draft),
        "other model": lambda: DraftModel(TableRunner(0.5 * draft + 0.5 * tables()[0]), BATCH),
    }
    return [made[name]() for name in names.split("+")]


def sometimes(drafters):
    """Each at some places of the texts, so that they take turns."""
    return (
        [Sometimes(each, number) for number, each in enumerate(drafters)]
        if len(drafters) > 1
        else drafters
    )


def p_of_policy(policy, drafters: list, num_requests: int, seed: int) -> tuple[float, int]:
    """p-value of the texts that are served under a policy, and how many draft tokens were
    accepted."""
    seeds = np.random.default_rng(seed).integers(2**62, size=num_requests).tolist()
    params = SamplingParams(max_tokens=10 * CIRCLE, ignore_eos=True)
    requests = [Request(number, [START], params, seed=each) for number, each in enumerate(seeds)]
    seconds = np.zeros(VOCABULARY)
    seconds[FIRST] = 1e-3
    executor = TableExecutor(tables()[0], drafters, seconds)
    accepted = serve(policy, requests, executor, batch=BATCH, max_draft_tokens=K)
    return p_of_transitions(
        [request.token_ids.tolist() for request in requests], tables()[0]
    ), accepted


def new_policy(name: str) -> Policy:
    policy = parse_policy(name)
    if isinstance(policy, Goodput):
        policy.queries = lambda num_rows: True  # in every step
    return policy


class Gambler(Policy):
    """Wants FIRST, by all that a policy gets to see: after a rejection its last drafter drafts the
    fork again if it was FIRST. If it was SECOND the target is to draw, or the first drafter to
    draft, if that is another one."""

    def __init__(self):
        self._was_first: dict[int, bool] = {}

    def plan(self, view, estimates):
        places = view.context_tokens % CIRCLE  # of the newest token in its circle
        wants = np.array(
            [self._was_first.get(request_id, True) for request_id in view.request_ids.tolist()]
        )
        last = len(view.drafters) - 1
        drafter = np.where((places == 1) & ~wants, 0, last)
        at_fork = np.where(wants | (last > 0), 1, 0)
        longest = np.select([places == 0, places == 1], [3, at_fork], 0)
        return plan_by(drafter, np.minimum(longest, length_caps(view, drafter, 3)))

    def learn(self, plan, outcome):
        if outcome.confidence is not None:
            seen = (outcome.accepted == 0) & np.isfinite(outcome.confidence[:, 2])
            ids, was_first = outcome.view.request_ids[seen], outcome.confidence[seen, 2] > 0.9
            self._was_first |= dict(zip(ids.tolist(), was_first.tolist(), strict=True))


@pytest.mark.parametrize("name", [*POLICIES, *published_policies(), *SETTINGS])
def test_texts_have_the_targets_distribution_whatever_the_policy_learns(name):
    p, accepted = p_of_policy(
        new_policy(name), sometimes(drafters_of("lookup+model+head")), 48, seed=3
    )
    assert p > LEAST
    assert (accepted > 0) == (name != "off")


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafters", ["model", "head", "model+other model", "lookup+model", "lookup+model+head"]
)
@pytest.mark.parametrize("name", [*POLICIES, *published_policies(), *SETTINGS])
def test_many_texts_have_the_targets_distribution(name, drafters):
    assert p_of_policy(new_policy(name), sometimes(drafters_of(drafters)), 2000, seed=4)[0] > LEAST


@pytest.mark.parametrize("drafters", ["model", "lookup+model"])
def test_a_policy_cannot_choose_texts_by_anything_it_sees(drafters):
    assert p_of_policy(Gambler(), drafters_of(drafters), 128, seed=5)[0] > LEAST


@pytest.mark.parametrize("drafters", ["model", "lookup+model"])
def test_drafting_with_the_same_numbers_again_fails_the_same_test(monkeypatch, drafters):
    """Without the depth in the key of the numbers the fork is drawn again as it was."""
    monkeypatch.setattr(sampler, "PURPOSES", 0)
    assert p_of_policy(Gambler(), drafters_of(drafters), 128, seed=5)[0] < BIASED
