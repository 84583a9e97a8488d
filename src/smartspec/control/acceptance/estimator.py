"""How likely draft tokens are accepted, learned from what was tested.

The model is a logistic one: the j-th draft token of request r, given that those before it were accepted, is accepted
with probability

    sigmoid(cell[pool, j] + class effect + request effect + lift[j])

(acceptance_cells, acceptance_effects). Conditioning on "was tested" makes the estimate unbiased under censoring: a
rejection hides everything behind it, so only positions up to the first rejection are observations (the
maximum-likelihood estimate of a truncated geometric; plugging accepted / drafted in as a rate gives 0.54 for a true
0.8 at five draft tokens). Once drafts exist, the confidence of their drafter replaces the cell (calibration).

The lift is what the accepted tokens before say about the request: with v the variance of what is believed of its
effect, and p the probabilities without lift, one Newton step gives sum(1 - p) / (1 / v + sum p (1 - p)), over positions
before j. Without it the tokens of a new request's draft would seem independent, and its later ones worth too little.
"""

from dataclasses import dataclass

import numpy as np

from smartspec.control.acceptance.calibration import ConfidenceCalibration
from smartspec.control.acceptance.cells import MODEL_POOL, AcceptanceCells, pools_of
from smartspec.control.acceptance.effects import AcceptanceEffects
from smartspec.control.acceptance.logistic import newton_evidence, sigmoid
from smartspec.control.records import BatchView, StepFeedback

# A draft model may catch up on hundreds of tokens at once; they say less about the next than fresh ones do.
MAX_CAUGHT_UP = 16


def observations(
    num_positions: int, verified: np.ndarray, tested: np.ndarray, accepted: np.ndarray, next_match: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which positions were observed and which of them were accepted: two bool [R, num_positions].

    verified, tested, accepted, next_match: int [R], see records.StepFeedback. next_match counts only behind a fully
    accepted draft: elsewhere the target's token at that position continues another text.
    """
    positions = np.arange(num_positions)[:, None]
    successes = np.minimum(accepted, tested)
    is_free = (next_match >= 0) & (successes == verified)
    num_observed = np.minimum(tested, successes + 1) + is_free
    num_accepted = successes + (is_free & (next_match == 1))
    return (positions < num_observed).T, (positions < num_accepted).T


@dataclass(frozen=True)
class _History:
    """What is known of R rows before drafting: the log-odds of each position without and with the lift, float [K, R];
    positions come first as sums over rows and positions are then contiguous."""

    log_odds: np.ndarray
    lifted: np.ndarray


class AcceptanceEstimator:
    """Learns acceptance and predicts survival for drafts of up to max_draft_tokens (K) tokens.

    In all methods view holds the R rows of a step, and use_model (bool [R], or one for all) says whether the draft
    would be the draft model's or the offer. Survival, float [R, K], never increasing along a row, is the probability
    that the first j draft tokens are all accepted, j = 1..K.
    """

    def __init__(self, max_draft_tokens: int):
        self.max_draft_tokens = max_draft_tokens
        self._cells = AcceptanceCells(max_draft_tokens)
        self._effects = AcceptanceEffects()
        self._calibrations = (ConfidenceCalibration(), ConfidenceCalibration())  # of offers, of the draft model
        # A step asks for the same several times: kept for its view until something is learned or forgotten.
        self._view: BatchView | None = None
        self._beliefs = np.empty((2, 2, 0))
        self._histories: dict[bytes, _History] = {}

    def survival(self, view: BatchView, use_model: np.ndarray | bool) -> np.ndarray:
        """Survival by all that is known before drafting."""
        return _survival(self._history(view, use_model).lifted)

    def survival_shifted(self, view: BatchView, use_model: np.ndarray | bool, shift: np.ndarray | float) -> np.ndarray:
        """Survival if all log-odds of a row were higher by shift, float [R] or one for all: see log_odds_std."""
        return _survival(self._history(view, use_model).lifted + shift)

    def survival_given_confidence(
        self, view: BatchView, use_model: np.ndarray | bool, confidence: np.ndarray
    ) -> np.ndarray:
        """Survival of drafts that exist. confidence: float [R, K], see records.Drafted; NaN: by history alone."""
        use_model = np.full(view.num_rows, use_model)
        log_odds = self._history(view, use_model).lifted.copy()
        for is_model, calibration in enumerate(self._calibrations):
            known = ~np.isnan(confidence.T) & (use_model == is_model)
            if known.any():
                log_odds[known] = calibration.log_odds(confidence.T[known], log_odds[known])
        return _survival(log_odds)

    @property
    def knows_confidence(self) -> bool:
        """Whether the draft model has ever said how confident it is in a token that was then tested."""
        return self._calibrations[True].has_learned

    def given_confidence(self, confidence: np.ndarray, history: np.ndarray) -> np.ndarray:
        """Acceptance of tokens of the draft model, float [N]. confidence: float [N]; history: float [N], log-odds by
        all that was known before drafting."""
        return sigmoid(self._calibrations[True].log_odds(confidence, history))

    def log_odds_std(self, view: BatchView, use_model: np.ndarray | bool) -> np.ndarray:
        """Standard deviation of the log-odds of each row's first draft token, float [R]: what pool, class and request
        leave open. Grows as evidence ages."""
        use_model = np.full(view.num_rows, use_model)
        pool_variance = self._cells.first_position_variance(pools_of(use_model, view.offers.evidence))
        rows = self._effects.rows(view.request_ids)
        variance = self._effects.variance(rows, view.class_ids, pool_variance)
        return np.sqrt(np.where(use_model, variance[1], variance[0]))

    def observe(self, feedback: StepFeedback) -> None:
        """Learn from one finished step."""
        view, use_model = feedback.view, feedback.plan.use_model
        counts = (feedback.verified, feedback.tested, feedback.accepted, feedback.next_match)
        tested, accepted = (array.T.astype(float) for array in observations(self.max_draft_tokens, *counts))
        if feedback.confidence is not None:
            self._learn_confidence(feedback, tested, accepted)
        caught_up = _caught_up(feedback, self.max_draft_tokens)
        has_evidence = tested[0] > 0 if caught_up is None else (tested[0] > 0) | (caught_up[0, 0] > 0)
        history = self._history(view, use_model)
        of_model = None if caught_up is None else self._history(view, True)
        rows = self._effects.rows_to_learn(view.request_ids, view.class_ids, has_evidence)
        by_row = self._learn_cells(pools_of(use_model, view.offers.evidence), history, tested, accepted)
        evidence = by_row[:, None] * np.array([~use_model, use_model])  # by source: [2, 2, R]
        if of_model is not None:
            evidence[:, 1] += self._learn_cells(np.full(view.num_rows, MODEL_POOL), of_model, *caught_up)
        self._effects.learn(rows, self._beliefs[0], *evidence)
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
        table = self._cells.table()
        names = ("calibration of offers", "calibration of the model")
        return table | {name: calibration.table() for name, calibration in zip(names, self._calibrations, strict=True)}

    def _history(self, view: BatchView, use_model: np.ndarray | bool) -> _History:
        if view is not self._view:
            rows = self._effects.rows(view.request_ids)
            self._view, self._beliefs, self._histories = view, self._effects.of(rows, view.class_ids), {}
        use_model = np.full(view.num_rows, use_model)
        key = use_model.tobytes()
        if key not in self._histories:
            effects, variances = np.where(use_model, self._beliefs[:, 1], self._beliefs[:, 0])
            log_odds = self._cells.of(pools_of(use_model, view.offers.evidence)) + effects
            lifted = log_odds + _lift(sigmoid(log_odds), variances)
            self._histories[key] = _History(log_odds, lifted)
        return self._histories[key]

    def _learn_cells(
        self, pools: np.ndarray, history: _History, tested: np.ndarray, accepted: np.ndarray
    ) -> np.ndarray:
        """Teach the cells; returns the information and the residual that are left for each row: float [2, R].

        Cells first, then rows given the new cells: both at once would each explain the same surprise in full.
        """
        moved = self._cells.learn(pools, tested, *newton_evidence(sigmoid(history.lifted), tested, accepted))
        information, residual = newton_evidence(sigmoid(history.log_odds), tested, accepted)
        residual -= information * moved.take(pools, axis=1)
        return np.array([information.sum(axis=0), residual.sum(axis=0)])

    def _learn_confidence(self, feedback: StepFeedback, tested: np.ndarray, accepted: np.ndarray) -> None:
        """Teach the calibrations; then fill in, in tested and accepted (float [K, R]), what the first draft token that
        was cut would have done. Else the history, which plans drafts before they exist, would know confident ones only.
        """
        use_model, confidence = feedback.plan.use_model, feedback.confidence.T
        history = self._history(feedback.view, use_model).lifted
        is_known, is_cut = ~np.isnan(confidence), _first_cut(feedback, len(tested))
        for is_model, calibration in enumerate(self._calibrations):
            known = is_known & (use_model == is_model)
            if not known.any():
                continue
            seen = known & (tested > 0)
            calibration.learn(confidence[seen], history[seen], accepted[seen])
            if (cut := known & is_cut).any():
                tested[cut] = 1.0
                accepted[cut] = sigmoid(calibration.log_odds(confidence[cut], history[cut]))


def _survival(log_odds: np.ndarray) -> np.ndarray:
    """From conditional log-odds, [K, R]: float [R, K]."""
    return sigmoid(log_odds).cumprod(axis=0).T


def _lift(predicted: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """See the module: float [K, R], from probabilities without it and the variances of the effects, float [R]."""
    lift = np.zeros_like(predicted)
    missed = 1.0 - predicted[:-1]
    lift[1:] = missed.cumsum(axis=0) / (1.0 / variances + (predicted[:-1] * missed).cumsum(axis=0))
    return lift


def _first_cut(feedback: StepFeedback, num_positions: int) -> np.ndarray:
    """Where everything verified was accepted and a draft token behind it was cut unseen: bool [K, R]."""
    is_cut = (feedback.tested >= feedback.verified) & (feedback.accepted >= feedback.verified)
    is_cut &= (feedback.drafted > feedback.verified) & (feedback.next_match < 0)
    return is_cut & (np.arange(num_positions)[:, None] == feedback.verified)


def _caught_up(feedback: StepFeedback, num_positions: int) -> np.ndarray | None:
    """What the draft model would have guessed as tests of its first position: tested and accepted, float [2, K, R]."""
    if feedback.caught_up is None or feedback.caught_up_matches is None or not feedback.caught_up.any():
        return None
    part = np.minimum(1.0, MAX_CAUGHT_UP / np.maximum(feedback.caught_up, 1))
    counts = np.zeros((2, num_positions, len(part)))
    counts[0, 0], counts[1, 0] = feedback.caught_up * part, feedback.caught_up_matches * part
    return counts
