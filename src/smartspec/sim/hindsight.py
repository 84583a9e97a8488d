"""What a whole log says about acceptance and time, looking back: the judge in a replay, never seen by a policy.

Acceptance is the model of control.acceptance without its forgetting: the j-th draft token of a request, given that
those before it were accepted, is accepted with probability sigmoid(cell[source, j] + effect[request, source]), fitted
to all observations at once by maximum likelihood with Gaussian priors (iteratively reweighted least squares).
"""

import numpy as np

from smartspec.control.acceptance.estimator import observations
from smartspec.control.latency.model import LatencyModel
from smartspec.control.log.decision import DecisionRecord
from smartspec.control.records import OTHER_TEXT, BatchView, DraftPlan, StepSeconds

NUM_OFFER_SOURCES = OTHER_TEXT + 4  # offers by their evidence
MODEL_SOURCE = NUM_OFFER_SOURCES
CELL_STRENGTH = 2.0  # information of about eight observations pulls a cell towards its kind of drafter
EFFECT_STRENGTH = 1.5  # requests differ by about 0.8 in log-odds
NUM_ROUNDS = 30
MAX_LOG_ODDS = 6.0


class HindsightAcceptance:
    """Fitted to the records it is given; then predicts conditional acceptance of any draft in the log."""

    def __init__(self, max_draft_tokens: int):
        self.max_draft_tokens = max_draft_tokens
        self._request_index: dict[int, int] = {}
        self._cells_seen: list[np.ndarray] = []
        self._groups_seen: list[np.ndarray] = []
        self._accepted_seen: list[np.ndarray] = []
        self._cells = np.zeros(((NUM_OFFER_SOURCES + 1), max_draft_tokens))
        self._effects = np.zeros((0, 2))

    def add(self, record: DecisionRecord) -> None:
        """Note what a step observed."""
        feedback, view = record.feedback, record.view
        counts = (feedback.verified, feedback.tested, feedback.accepted, feedback.next_match)
        is_observed, is_accepted = observations(self.max_draft_tokens, *counts)
        rows, positions = np.nonzero(is_observed)
        use_model = feedback.plan.use_model
        requests = np.array(
            [self._request_index.setdefault(i, len(self._request_index)) for i in view.request_ids.tolist()]
        )
        sources = _sources(use_model, view.offers.evidence)
        self._cells_seen.append((sources[rows] * self.max_draft_tokens + positions).astype(np.int32))
        self._groups_seen.append((requests[rows] * 2 + use_model[rows]).astype(np.int32))
        self._accepted_seen.append(is_accepted[rows, positions])

    def fit(self) -> None:
        """Find the most likely cells and effects."""
        cells, groups = _joined(self._cells_seen, np.int32), _joined(self._groups_seen, np.int32)
        accepted = _joined(self._accepted_seen, bool).astype(float)
        is_model = cells // self.max_draft_tokens == MODEL_SOURCE
        levels = [_log_odds(accepted[is_model == of_model]) for of_model in (False, True)]
        priors = np.repeat(levels, [NUM_OFFER_SOURCES * self.max_draft_tokens, self.max_draft_tokens])
        cell_values, effects = priors.copy(), np.zeros(2 * len(self._request_index))
        for _ in range(NUM_ROUNDS):
            predicted = _sigmoid(cell_values[cells] + effects[groups])
            cell_values += _newton_step(cells, accepted, predicted, cell_values - priors, CELL_STRENGTH)
            predicted = _sigmoid(cell_values[cells] + effects[groups])
            effects += _newton_step(groups, accepted, predicted, effects, EFFECT_STRENGTH)
        self._cells = cell_values.reshape(self._cells.shape)
        self._effects = effects.reshape(-1, 2)

    def conditional(self, view: BatchView, use_model: np.ndarray) -> np.ndarray:
        """Probability that draft token j is accepted, given that those before it were: float [R, K].

        use_model: bool [R], the source of each row's draft.
        """
        effects = np.append(self._effects, [[0.0, 0.0]], axis=0)  # the last for requests that are not in the log
        requests = [self._request_index.get(request_id, -1) for request_id in view.request_ids.tolist()]
        effect = effects[requests, use_model.astype(np.intp)] if requests else np.zeros(0)
        return _sigmoid(self._cells[_sources(use_model, view.offers.evidence)] + effect[:, None])


class HindsightSeconds:
    """Step times of plans that were not run: recorded seconds, times what the cost model says the difference makes.

    A slow moment of the machine is slow for every plan, and the recorded plan takes exactly what it took.
    """

    def __init__(self, latency: LatencyModel):
        self._latency = latency

    def add(self, record: DecisionRecord) -> None:
        """Correct the cost model by a recorded step."""
        feedback = record.feedback
        self._latency.observe(record.view, _executed(record), feedback.verified, feedback.seconds)

    def seconds(self, record: DecisionRecord, view: BatchView, plan: DraftPlan, verified: np.ndarray) -> StepSeconds:
        """What the recorded step would have taken with another plan. view: the record's, as the plan finds it."""
        measured = record.feedback.seconds
        then = self._latency.predict(record.view, _executed(record), record.feedback.verified)
        now = self._latency.predict(view, plan, verified)
        # Without a pass of the draft model, draft seconds are those of looking up offers, which every plan needs.
        draft = measured.draft * now.draft / then.draft if then.draft else measured.draft + now.draft
        return StepSeconds(draft, measured.target * now.target / then.target, measured.host)


def _executed(record: DecisionRecord) -> DraftPlan:
    return DraftPlan(record.feedback.drafted, record.use_model)


def _sources(use_model: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    return np.where(use_model, MODEL_SOURCE, np.clip(evidence, 0, NUM_OFFER_SOURCES - 1))


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)


def _log_odds(accepted: np.ndarray) -> float:
    """Of the mean, with one success and one failure added."""
    rate = (accepted.sum() + 1.0) / (len(accepted) + 2.0)
    return float(np.log(rate / (1.0 - rate)))


def _sigmoid(log_odds: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(log_odds, -MAX_LOG_ODDS, MAX_LOG_ODDS)))


def _newton_step(
    members: np.ndarray, accepted: np.ndarray, predicted: np.ndarray, from_prior: np.ndarray, strength: float
) -> np.ndarray:
    """The step of every parameter towards its posterior mode; members: which parameter each observation is of."""
    score = np.bincount(members, weights=accepted - predicted, minlength=len(from_prior))
    information = np.bincount(members, weights=predicted * (1.0 - predicted), minlength=len(from_prior))
    return (score - strength * from_prior) / (information + strength)
