"""How likely draft tokens are accepted, learned from what was tested.

The model is a logistic one: the j-th draft token of request r, given that those before it were accepted, is accepted
with probability

    sigmoid(cell[pool, j] + class effect + request effect + lift[j])

(cells, effects). Conditioning on "was tested" makes the estimate unbiased under censoring: a rejection hides everything
behind it, so only positions up to the first rejection are observations (the maximum-likelihood estimate of a truncated
geometric; plugging accepted / drafted in as a rate gives 0.54 for a true 0.8 at five draft tokens). Once drafts exist,
the confidence of their drafter replaces the cell (calibration).

The lift is what the accepted tokens before say about the request: with v the variance of what is believed of its
effect, and p the probabilities without lift, one Newton step gives sum(1 - p) / (1 / v + sum p (1 - p)), over positions
before j. Without it the tokens of a new request's draft would seem independent, and its later ones worth too little.
"""

from dataclasses import dataclass

import numpy as np

from smartspec.control.acceptance.calibration import ConfidenceCalibration
from smartspec.control.acceptance.cells import AcceptanceCells, Pools
from smartspec.control.acceptance.effects import AcceptanceEffects
from smartspec.control.acceptance.logistic import newton_evidence, sigmoid
from smartspec.control.records import BatchView, DrafterSpec, StepFeedback, of_drafter

# A draft prefill may test hundreds of tokens at once; they say less about the next than fresh ones do.
MAX_FREE_TESTS = 16


def observations(num_positions: int, tested: np.ndarray, accepted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which positions of the verified drafts were observed and which of them accepted: two bool [R, num_positions].

    tested, accepted: int [R], see records.StepFeedback.
    """
    positions = np.arange(num_positions)[:, None]
    successes = np.minimum(accepted, tested)
    return (positions < np.minimum(tested, successes + 1)).T, (positions < successes).T


@dataclass(frozen=True)
class _History:
    """What is known of the drafts of each drafter for R rows before drafting: pools, int [D, R]; effects of class and
    request, float [D, R]; the log-odds of each position without and with the lift, float [K, D, R]; positions come
    first as sums over rows and positions are then contiguous."""

    pools: np.ndarray
    effects: np.ndarray
    log_odds: np.ndarray
    lifted: np.ndarray


class AcceptanceEstimator:
    """Learns acceptance and predicts survival for drafts of up to max_draft_tokens (K) tokens.

    drafters: in the order of their numbers, D of them. In all methods view holds the R rows of a step. Survival, never
    increasing along a row, is the probability that the first j draft tokens are all accepted, j = 1..K.
    """

    def __init__(self, max_draft_tokens: int, drafters: tuple[DrafterSpec, ...]):
        self.max_draft_tokens = max_draft_tokens
        self._drafters = drafters
        self._pools = Pools(drafters)
        self._cells = AcceptanceCells(max_draft_tokens, self._pools)
        self._effects = AcceptanceEffects(len(drafters))
        self._calibrations = tuple(ConfidenceCalibration() for _ in drafters)
        # A step asks for the same several times: kept for its view until something is learned or forgotten.
        self._view: BatchView | None = None
        self._kept: _History | None = None

    def survival(self, view: BatchView) -> np.ndarray:
        """Survival of the drafts of each drafter, by all that is known before drafting: float [D, R, K]."""
        return _survival(self._history(view).lifted)

    def survival_shifted(self, view: BatchView, shift: np.ndarray | float) -> np.ndarray:
        """The same if all log-odds of a row were higher by shift, float [D, R] or one for all: see log_odds_std."""
        return _survival(self._history(view).lifted + shift)

    def survival_given_confidence(self, view: BatchView, drafter: np.ndarray, confidence: np.ndarray) -> np.ndarray:
        """Survival of drafts that exist: float [R, K]. drafter: int [R], whose they are. confidence: float [R, K], see
        records.Drafted; NaN: by history alone."""
        log_odds = self._lifted_of(view, drafter).copy()
        for number, calibration in enumerate(self._calibrations):
            known = ~np.isnan(confidence.T) & (drafter == number)
            if known.any():
                log_odds[known] = calibration.log_odds(confidence.T[known], log_odds[known])
        return _survival(log_odds)

    def knows_confidence(self, drafter: int) -> bool:
        """Whether that drafter has ever said how confident it is in a token that was then tested."""
        return self._calibrations[drafter].has_learned

    def given_confidence(self, drafter: int, confidence: np.ndarray, history: np.ndarray) -> np.ndarray:
        """Acceptance of tokens of that drafter, float [N]. confidence: float [N]; history: float [N], log-odds by all
        that was known before drafting."""
        return sigmoid(self._calibrations[drafter].log_odds(confidence, history))

    def log_odds_std(self, view: BatchView) -> np.ndarray:
        """Standard deviation of the log-odds of the first token of each row's draft by each drafter, float [D, R]: what
        pool, class and request leave open. Grows as evidence ages."""
        pool_variance = self._cells.first_position_variance(self._pools.of(view))
        return np.sqrt(self._effects.variance(self._effects.rows(view.request_ids), view.class_ids, pool_variance))

    def observe(self, feedback: StepFeedback) -> None:
        """Learn from one finished step."""
        view = feedback.view
        is_own = feedback.plan.drafter == np.arange(len(self._drafters))[:, None]
        observed = observations(self.max_draft_tokens, feedback.tested, feedback.accepted)
        tested, accepted = (array.T[:, None].astype(float) * is_own for array in observed)
        self._learn_confidence(feedback, tested, accepted)
        _add_free_tests(feedback, tested, accepted)
        history = self._history(view)
        rows = self._effects.rows_to_learn(view.request_ids, view.class_ids, tested[0].any(axis=0))
        evidence = self._learn_cells(history, tested, accepted)
        self._effects.learn(rows, history.effects, *evidence)
        self._cells.age()
        self._view = None

    def forget(self, request_id: int) -> None:
        """Drop a request that has ended; what it taught stays with its class. Unknown ones are ignored."""
        self._effects.forget(request_id)
        self._view = None

    @property
    def num_tracked_requests(self) -> int:
        return self._effects.num_tracked_requests

    def table(self) -> dict:
        """JSON-able: by pool and position the conditional acceptance of a request without a class or a history, roughly
        how many fading observations are behind it and the standard deviation of its log-odds; and the calibrations."""
        pairs = zip(self._drafters, self._calibrations, strict=True)
        calibrations = {f"calibration of {drafter.name}": calibration.table() for drafter, calibration in pairs}
        return self._cells.table() | calibrations

    def _history(self, view: BatchView) -> _History:
        if self._kept is None or view is not self._view:
            pools = self._pools.of(view)
            effects, variances = self._effects.of(self._effects.rows(view.request_ids), view.class_ids)
            log_odds = self._cells.of(pools) + effects
            lifted = log_odds + _lift(sigmoid(log_odds), variances)
            self._view, self._kept = view, _History(pools, effects, log_odds, lifted)
        return self._kept

    def _lifted_of(self, view: BatchView, drafter: np.ndarray) -> np.ndarray:
        """Log-odds with the lift of the drafts of these drafters (int [R]): float [K, R]."""
        return of_drafter(self._history(view).lifted.transpose(1, 2, 0), drafter).T

    def _learn_cells(self, history: _History, tested: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        """Teach the cells; returns the information and the residual that are left for each row: float [2, D, R].

        Cells first, then rows given the new cells: both at once would each explain the same residual in full.
        """
        moved = self._cells.learn(history.pools, tested, *newton_evidence(sigmoid(history.lifted), tested, accepted))
        information, residual = newton_evidence(sigmoid(history.log_odds), tested, accepted)
        residual -= information * moved.take(history.pools, axis=1)
        return np.array([information.sum(axis=0), residual.sum(axis=0)])

    def _learn_confidence(self, feedback: StepFeedback, tested: np.ndarray, accepted: np.ndarray) -> None:
        """Teach the calibrations; then fill in, in tested and accepted (float [K, D, R]), what the first draft token
        that was cut would have done. Else the history, which plans drafts before they exist, would know confident ones
        only."""
        if feedback.confidence is None:
            return
        drafter, confidence = feedback.plan.drafter, feedback.confidence.T
        history = self._lifted_of(feedback.view, drafter)
        is_known, is_cut = ~np.isnan(confidence), _first_cut(feedback, len(tested))
        for number, calibration in enumerate(self._calibrations):
            known = is_known & (drafter == number)
            if not known.any():
                continue
            seen = known & (tested[:, number] > 0)
            calibration.learn(confidence[seen], history[seen], accepted[:, number][seen])
            if (cut := known & is_cut).any():
                tested[:, number][cut] = 1.0
                accepted[:, number][cut] = sigmoid(calibration.log_odds(confidence[cut], history[cut]))


def _survival(log_odds: np.ndarray) -> np.ndarray:
    """From conditional log-odds, [K, ...]: float [..., K]."""
    survival = sigmoid(log_odds).cumprod(axis=0)
    return survival.transpose(*range(1, survival.ndim), 0)


def _lift(predicted: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """See the module: float [K, D, R], from probabilities without it and the variances of the effects, float [D, R]."""
    lift = np.zeros_like(predicted)
    missed = 1.0 - predicted[:-1]
    lift[1:] = missed.cumsum(axis=0) / (1.0 / variances + (predicted[:-1] * missed).cumsum(axis=0))
    return lift


def _first_cut(feedback: StepFeedback, num_positions: int) -> np.ndarray:
    """Where everything verified was accepted and a draft token behind it was cut, its fate unknown: bool [K, R]."""
    is_cut = (feedback.tested >= feedback.verified) & (feedback.accepted >= feedback.verified)
    is_cut &= feedback.drafted > feedback.verified
    for number, free in enumerate(feedback.free_tests):
        is_known = (free.tested > 0) & (free.position == feedback.verified)
        is_cut &= ~(is_known & (feedback.plan.drafter == number))
    return is_cut & (np.arange(num_positions)[:, None] == feedback.verified)


def _add_free_tests(feedback: StepFeedback, tested: np.ndarray, accepted: np.ndarray) -> None:
    """Add them to tested and accepted, float [K, D, R]."""
    for number, free in enumerate(feedback.free_tests):
        if free.tested.any():
            is_there = np.arange(len(tested))[:, None] == free.position
            part = np.minimum(1.0, MAX_FREE_TESTS / np.maximum(free.tested, 1))
            tested[:, number] += is_there * (free.tested * part)
            accepted[:, number] += is_there * (free.matched * part)
