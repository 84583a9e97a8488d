"""How likely draft tokens are accepted, learned from what was tested.

The model is a logistic one: the j-th draft token of request r, given that those before it were accepted, is accepted
with probability

    sigmoid(cell[pool, j] + effect[r])

A pool is an evidence class of the offers (prompt lookup: length of the match) or the draft model; the effect says how
much easier or harder than the others a request is. Conditioning on "was tested" makes the estimate unbiased under
censoring: a rejection hides everything behind it, so only positions up to the first rejection are observations (the
maximum-likelihood estimate of a truncated geometric; plugging accepted / drafted in as a rate gives 0.54 for a true
0.8 at five draft tokens).

Cells and effects are estimated in one way: a Newton step per observation turns outcome y, predicted as p, into
information w = p (1 - p) and score w * estimate + (y - p); both fade, and

    estimate = (sum of scores + strength * prior) / (sum of information + strength)

which is the extended Kalman (Laplace) update of logistic regression with a Gaussian prior of variance 1 / strength.
Effects are shrunk towards 0; a cell towards the same position of all evidence classes and the position before it, so
cold cells borrow.
"""

import numpy as np

EVIDENCE_CLASSES = ("0-1", "2", "3", "4-5", "6-8", "9+")
_CLASS_OF_EVIDENCE = np.array([0, 0, 1, 2, 3, 3, 4, 4, 4, 5])
_MODEL_POOL = len(EVIDENCE_CLASSES)
_NUM_POOLS = _MODEL_POOL + 1

# An untested drafter is believed to be right a little more often than not: a try costs little, never trying costs the
# whole gain.
PRIOR_LOG_ODDS = float(np.log(0.6 / 0.4))
PRIOR_STRENGTH = 1.0  # information of four observations: the first evidence overrides it
# Neighbours weigh more, ten observations: bad luck at a position few drafts reach must not keep all drafts short of it.
CELL_STRENGTH = 2.5
EFFECT_STRENGTH = 1.5  # requests differ by about 0.8 in log-odds: 0.5 for one is 0.3 or 0.7 for others
CELL_FADE = 1 - 1 / 1000  # per observation of the cell
# Evidence ages even where none arrives, so a drafter that was written off is tried again after a few thousand steps.
IDLE_FADE = 1 - 1 / 500  # per step
EFFECT_FADE = 1 - 1 / 40  # per step: a request may turn from prose to code
MIN_INFORMATION = 0.02  # keeps Newton steps short where p is near 0 or 1; does not move the fixed point
MAX_LOG_ODDS = 6.0
MAX_TRACKED_REQUESTS = 4096


def _sigmoid(log_odds: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(log_odds, -MAX_LOG_ODDS, MAX_LOG_ODDS)))


def observations(
    num_positions: int, verified: np.ndarray, tested: np.ndarray, accepted: np.ndarray, next_match: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which positions were observed and which of them were accepted: two bool [R, num_positions].

    verified, tested, accepted, next_match: int [R], see records.StepFeedback. next_match counts only behind a fully
    accepted draft: elsewhere the target's token at that position continues another text.
    """
    positions = np.arange(num_positions)
    successes = np.minimum(accepted, tested)
    is_accepted = positions < successes[:, None]
    is_observed = positions < np.minimum(tested, successes + 1)[:, None]
    is_free = ((next_match >= 0) & (successes == verified))[:, None] & (positions == verified[:, None])
    return is_observed | is_free, is_accepted | (is_free & (next_match == 1)[:, None])


class AcceptanceEstimator:
    """Learns acceptance and predicts survival for drafts of up to max_draft_tokens tokens."""

    def __init__(self, max_draft_tokens: int):
        self.max_draft_tokens = max_draft_tokens
        self._information = np.zeros((_NUM_POOLS, max_draft_tokens))
        self._score = np.zeros((_NUM_POOLS, max_draft_tokens))
        self._cells = np.full((_NUM_POOLS, max_draft_tokens), PRIOR_LOG_ODDS)
        # Request state by table row and source (0 offers, 1 draft model). Row 0 stays zero: requests of which nothing
        # is known.
        self._effect_information = np.zeros((MAX_TRACKED_REQUESTS + 1, 2))
        self._effect_score = np.zeros((MAX_TRACKED_REQUESTS + 1, 2))
        self._row_of_request: dict[int, int] = {}
        self._free_rows = list(range(MAX_TRACKED_REQUESTS, 0, -1))

    def survival(self, request_ids: np.ndarray, use_model: np.ndarray, evidence: np.ndarray) -> np.ndarray:
        """Probability that the first j draft tokens are all accepted, j = 1..K: float [R, K], never increasing along
        a row.

        use_model: bool [R], whether the draft is the draft model's or the offer; evidence: int [R], strength of the
        offer.
        """
        effects = self._effects(self._rows(request_ids), use_model.astype(np.intp))
        conditional = _sigmoid(self._cells[_pools(use_model, evidence)] + effects[:, None])
        return np.cumprod(conditional, axis=1)

    def observe(
        self,
        request_ids: np.ndarray,
        use_model: np.ndarray,
        evidence: np.ndarray,
        is_observed: np.ndarray,
        is_accepted: np.ndarray,
    ) -> None:
        """Learn from one step. is_observed, is_accepted: bool [R, K], see observations(); the rest as in survival()."""
        pools, sources = _pools(use_model, evidence), use_model.astype(np.intp)
        rows = self._rows_to_learn(request_ids, is_observed.any(axis=1))
        # Cells first, then effects given the new cells: both at once would each explain the same surprise in full.
        information, score = _newton_evidence(
            self._cells[pools], self._effects(rows, sources)[:, None], is_observed, is_accepted
        )
        self._learn_cells(pools, is_observed, information, score + information * self._cells[pools])
        effects = self._effects(rows, sources)
        information, score = _newton_evidence(self._cells[pools], effects[:, None], is_observed, is_accepted)
        information, score = information.sum(axis=1), score.sum(axis=1)
        self._effect_information[rows] *= EFFECT_FADE
        self._effect_score[rows] *= EFFECT_FADE
        self._effect_information[rows, sources] += information
        self._effect_score[rows, sources] += score + information * effects

    def forget(self, request_id: int) -> None:
        """Drop what is known about a request; unknown ones are ignored."""
        row = self._row_of_request.pop(request_id, None)
        if row is not None:
            self._effect_information[row] = self._effect_score[row] = 0.0
            self._free_rows.append(row)

    @property
    def num_tracked_requests(self) -> int:
        return len(self._row_of_request)

    def table(self) -> dict:
        """Conditional acceptance by pool and position, and roughly how many fading observations are behind it."""
        acceptance, weight = _sigmoid(self._cells), self._information / 0.25
        pools = {f"match {name}": index for index, name in enumerate(EVIDENCE_CLASSES)} | {"model": _MODEL_POOL}
        return {
            name: {
                "acceptance": [round(float(value), 4) for value in acceptance[index]],
                "observations": [round(float(value), 1) for value in weight[index]],
            }
            for name, index in pools.items()
        }

    def _effects(self, rows: np.ndarray, sources: np.ndarray) -> np.ndarray:
        return self._effect_score[rows, sources] / (self._effect_information[rows, sources] + EFFECT_STRENGTH)

    def _rows(self, request_ids: np.ndarray) -> np.ndarray:
        return np.array([self._row_of_request.get(request_id, 0) for request_id in request_ids.tolist()], dtype=np.intp)

    def _rows_to_learn(self, request_ids: np.ndarray, has_observation: np.ndarray) -> np.ndarray:
        """Table rows, made for requests that are observed for the first time; the longest known request makes room."""
        for request_id in request_ids[has_observation].tolist():
            if request_id not in self._row_of_request:
                if not self._free_rows:
                    self.forget(next(iter(self._row_of_request)))
                self._row_of_request[request_id] = self._free_rows.pop()
        return self._rows(request_ids)

    def _learn_cells(
        self, pools: np.ndarray, is_observed: np.ndarray, information: np.ndarray, score: np.ndarray
    ) -> None:
        """Add per-row evidence [R, K] to the cells, fade the old, and estimate anew."""
        members = (np.arange(_NUM_POOLS)[:, None] == pools).astype(float)
        fade = IDLE_FADE * CELL_FADE ** (members @ is_observed)
        self._information = self._information * fade + members @ information
        self._score = self._score * fade + members @ score
        shared_information, shared_score = self._information.copy(), self._score.copy()
        shared_information[:_MODEL_POOL] = self._information[:_MODEL_POOL].sum(axis=0)
        shared_score[:_MODEL_POOL] = self._score[:_MODEL_POOL].sum(axis=0)
        shared = previous = np.full(_NUM_POOLS, PRIOR_LOG_ODDS)
        for j in range(self.max_draft_tokens):
            strength = CELL_STRENGTH if j else PRIOR_STRENGTH
            shared = (shared_score[:, j] + strength * shared) / (shared_information[:, j] + strength)
            prior = 0.5 * (shared + previous) if j else shared
            previous = (self._score[:, j] + CELL_STRENGTH * prior) / (self._information[:, j] + CELL_STRENGTH)
            self._cells[:, j] = previous
        np.clip(self._cells, -MAX_LOG_ODDS, MAX_LOG_ODDS, out=self._cells)


def _pools(use_model: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    classes = _CLASS_OF_EVIDENCE[np.clip(evidence, 0, len(_CLASS_OF_EVIDENCE) - 1)]
    return np.where(use_model, _MODEL_POOL, classes)


def _newton_evidence(
    cells: np.ndarray, effects: np.ndarray, is_observed: np.ndarray, is_accepted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Information p (1 - p) and gradient y - p of the log-likelihood at the present estimate, 0 where unobserved."""
    predicted = _sigmoid(cells + effects)
    information = np.maximum(predicted * (1.0 - predicted), MIN_INFORMATION)
    return information * is_observed, (is_accepted - predicted) * is_observed
