"""Acceptance and time in a whole log, fitted afterwards. A replay draws outcomes from it; policies
never see it.

Acceptance is the model of control.acceptance without its forgetting. If the tokens before it were
accepted, the j-th draft token of a request is accepted with probability sigmoid(table[pool, j] +
effect[request, drafter]). The model is fitted to all observations at once by maximum likelihood
with Gaussian priors (iteratively reweighted least squares). In a tree the top-1 children are what a
chain would have been. The acceptance of later children is counted by rank.
"""

import numpy as np

from smartspec.control import (
    BatchView,
    DecisionRecord,
    DrafterSpec,
    LatencyModel,
    Plan,
    StepSeconds,
)
from smartspec.control.acceptance.child_ranks import ChildRankAcceptance
from smartspec.control.acceptance.logistic import sigmoid
from smartspec.control.acceptance.observations import observed_positions, top_child_tests
from smartspec.control.acceptance.table import Pools

ENTRY_STRENGTH = 2.0  # information of about eight observations pulls an entry towards its drafter
EFFECT_STRENGTH = 1.5  # requests differ by about 0.8 in log-odds
NUM_ROUNDS = 30


class HindsightAcceptance:
    """Fitted to the records it is given; then predicts conditional acceptance of any draft in the
    log."""

    def __init__(self, max_draft_tokens: int, drafters: tuple[DrafterSpec, ...]):
        self._drafters = drafters
        self._pools = Pools(drafters)
        self.max_draft_tokens = max_draft_tokens
        self._request_index: dict[int, int] = {}
        # of the observations of each step: entry of the table, request and drafter, accepted
        self._seen: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._table = np.zeros((len(self._pools), max_draft_tokens))
        self._effects = np.zeros((0, len(drafters)))
        self._ranks = [ChildRankAcceptance(memory=np.inf) for _ in drafters]

    def add(self, record: DecisionRecord) -> None:
        """Note what a step observed."""
        outcome, view = record.outcome, record.view
        requests = np.array(
            [
                self._request_index.setdefault(i, len(self._request_index))
                for i in view.request_ids.tolist()
            ]
        )
        pools = self._pools.of(view.match_lengths)

        def see(
            drafter: np.ndarray, rows: np.ndarray, positions: np.ndarray, is_accepted: np.ndarray
        ) -> None:
            entries = pools[drafter, rows] * self.max_draft_tokens + positions
            groups = requests[rows] * len(self._drafters) + drafter
            self._seen.append((entries.astype(np.int32), groups.astype(np.int32), is_accepted))

        is_observed, is_accepted = observed_positions(
            self.max_draft_tokens, outcome.tested, outcome.accepted
        )
        if outcome.parents is not None and outcome.node_tests is not None:
            tested, accepted = top_child_tests(outcome.parents, outcome.node_tests)
            is_observed, is_accepted = tested.T > 0, accepted.T > 0
            for number, ranks in enumerate(self._ranks):
                rows = outcome.plan.drafter == number
                ranks.learn(outcome.parents[rows], outcome.node_tests[rows])
        rows, positions = np.nonzero(is_observed)
        see(outcome.plan.drafter[rows], rows, positions, is_accepted[rows, positions])
        for number, free in enumerate(outcome.free_tests):
            if not self._drafters[number].has_passes:
                rows = np.flatnonzero(free.tested)
                see(np.full(len(rows), number), rows, free.position[rows], free.matched[rows] > 0)

    def fit(self) -> None:
        """Find the most likely table and effects, of one step or more."""
        entries, groups, is_accepted = map(np.concatenate, zip(*self._seen, strict=True))
        accepted = is_accepted.astype(float)
        num_drafters = len(self._drafters)
        levels = np.array(
            [_log_odds(accepted[groups % num_drafters == number]) for number in range(num_drafters)]
        )
        priors = np.repeat(levels[self._pools.drafters], self.max_draft_tokens)
        values, effects = priors.copy(), np.zeros(num_drafters * len(self._request_index))
        for _ in range(NUM_ROUNDS):
            predicted = sigmoid(values[entries] + effects[groups])
            values += _newton_step(entries, accepted, predicted, values - priors, ENTRY_STRENGTH)
            predicted = sigmoid(values[entries] + effects[groups])
            effects += _newton_step(groups, accepted, predicted, effects, EFFECT_STRENGTH)
        self._table = values.reshape(self._table.shape)
        self._effects = effects.reshape(-1, num_drafters)

    def conditional(self, view: BatchView) -> np.ndarray:
        """Probability that draft token j of each drafter is accepted, given those before it were:
        float [D, R, K]."""
        # the last: not in the log
        effects = np.append(self._effects, np.zeros((1, len(self._drafters))), axis=0)
        requests = [
            self._request_index.get(request_id, -1) for request_id in view.request_ids.tolist()
        ]
        effect = effects[np.array(requests, dtype=np.intp)].T
        return sigmoid(self._table[self._pools.of(view.match_lengths)] + effect[:, :, None])

    def rank_chances(self, drafter: int) -> np.ndarray:
        """The chance that a node's second, third, ... child by that drafter is right where the
        first is wrong: float [ranks]."""
        return self._ranks[drafter].chances


class HindsightSeconds:
    """Step times of plans that were not run: recorded seconds, times what the cost model says the
    difference makes.

    A slow moment of the machine is slow for every plan, and the recorded plan takes exactly what it
    took.
    """

    def __init__(self, latency: LatencyModel):
        self._latency = latency

    def add(self, record: DecisionRecord) -> None:
        """Correct the cost model by a recorded step."""
        self._latency.observe([record.outcome])

    def seconds(
        self, record: DecisionRecord, view: BatchView, plan: Plan, verified: np.ndarray
    ) -> StepSeconds:
        """Time of the recorded step with another plan. view: the record's, as the plan finds it."""
        measured = record.outcome.seconds
        then = self._latency.predict(
            record.view, record.outcome.as_drafted(), record.outcome.verified
        )
        now = self._latency.predict(view, plan, verified)
        # Without a draft pass, draft seconds are those of model-free drafters, which every plan
        # needs.
        draft = (
            measured.draft * now.draft / then.draft if then.draft else measured.draft + now.draft
        )
        return StepSeconds(draft, measured.target * now.target / then.target, measured.host)


def _log_odds(accepted: np.ndarray) -> float:
    """Log-odds of the mean, with one success and one failure added."""
    rate = (accepted.sum() + 1.0) / (len(accepted) + 2.0)
    return float(np.log(rate / (1.0 - rate)))


def _newton_step(
    members: np.ndarray,
    accepted: np.ndarray,
    predicted: np.ndarray,
    from_prior: np.ndarray,
    strength: float,
) -> np.ndarray:
    """The step of every parameter towards its posterior mode; members: which parameter each
    observation is of."""
    score = np.bincount(members, weights=accepted - predicted, minlength=len(from_prior))
    information = np.bincount(
        members, weights=predicted * (1.0 - predicted), minlength=len(from_prior)
    )
    return (score - strength * from_prior) / (information + strength)
