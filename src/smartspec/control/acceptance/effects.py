"""How much easier than the pool a workload class is, and a request than its class: the fast part of the estimate.

Effects are shifts of the log-odds, one by drafter (of which there are D). Those of the requests of a class
scatter around the class effect with variance 1 / strength (learned: acceptance_spread), class effects around 0 with
variance 1 / CLASS_STRENGTH. With W the information a request has collected and s its score (see acceptance_cells), the
posterior of such a random-effects model is exact in closed form:

    share of a request in its class   a = W * strength / (W + strength), at most strength, however large W
    class effect                      sum of a * (s / W) / (sum of a + CLASS_STRENGTH)
    request effect                    (s + strength * class effect) / (W + strength)

What a request knows fades, as its text drifts; the faded share stays with the class, whose memory is a number of
requests. Both forget faster where a change is detected: a fading sum of residuals, squared over its variance, is about
1 where nothing changes, and evidence is dropped the faster the further it is above.
"""

import numpy as np

from smartspec.control.acceptance.spread import RequestSpread

CLASS_STRENGTH = 2.0
REQUEST_FADE = 1 - 1 / 80  # per step: a request may turn from prose to code
CLASS_FADE = 1 - 1 / 500  # per step
CLASS_MEMORY = 30.0  # requests
RESIDUAL_FADE = 0.8  # per step: residuals of about the last five
CHANGE_THRESHOLD = 4.0  # residuals squared over their variance: chance exceeds it once in twenty
FORGETTING = 0.1  # a ratio of 14 halves what is known
MIN_RESIDUAL_VARIANCE = 0.1
MAX_TRACKED_REQUESTS = 4096  # a power of two
NUM_CLASSES = 64  # with 0, of requests that name none; a power of two: class ids beyond share
_LITTLE = 1e-9
_NOBODY = np.iinfo(np.int64).min


class AcceptanceEffects:
    """Effects of classes and requests on the log-odds. The first axis of all arrays: drafters.

    A request lives in the table row id modulo MAX_TRACKED_REQUESTS, found without a search. Where two claim one row
    (ids are counted up, so the older has long ended), the newer gets it. The last row stays zero: requests of which
    nothing is known.
    """

    def __init__(self, num_drafters: int):
        self._num_rows = MAX_TRACKED_REQUESTS
        self._ids = np.full(self._num_rows + 1, _NOBODY)
        self._classes = np.zeros(self._num_rows + 1, dtype=np.int64)
        # Information, score, its variance given the request's effect, sum of residuals and its variance: read and
        # written together.
        self._state = np.zeros((5, num_drafters, self._num_rows + 1))
        self._spread = RequestSpread(num_drafters)
        # Per class, shares (the first D lines) and shares times estimates: of the requests of the last step, and of
        # what has faded or left.
        self._present = np.zeros((2 * num_drafters, NUM_CLASSES))
        self._present_rows = np.zeros(0, dtype=np.int64)
        self._past = np.zeros((2 * num_drafters, NUM_CLASSES))
        self._num_drafters = num_drafters
        self._class_residual = np.zeros((num_drafters, NUM_CLASSES))
        self._class_residual_variance = np.zeros((num_drafters, NUM_CLASSES))

    @property
    def num_tracked_requests(self) -> int:
        return int(np.count_nonzero(self._ids != _NOBODY))

    def rows(self, request_ids: np.ndarray) -> np.ndarray:
        """Table row of each request: int [R]."""
        rows = request_ids & (self._num_rows - 1)
        return np.where(self._ids.take(rows) == request_ids, rows, self._num_rows)

    def rows_to_learn(self, request_ids: np.ndarray, class_ids: np.ndarray, has_evidence: np.ndarray) -> np.ndarray:
        """As rows(), with a row made for every request that has evidence (bool [R]) for the first time."""
        rows = self.rows(request_ids)
        is_new = has_evidence & (rows == self._num_rows)
        if is_new.any():
            claimed = request_ids[is_new] & (self._num_rows - 1)
            for request_id in self._ids[claimed].tolist():
                self.forget(request_id)
            self._ids[claimed] = request_ids[is_new]
            self._classes[claimed] = class_ids[is_new] & (NUM_CLASSES - 1)
            rows = self.rows(request_ids)
        return rows

    def of(self, rows: np.ndarray, class_ids: np.ndarray) -> np.ndarray:
        """Class and request effect together, on the log-odds, and their variance given the class: float [2, D, R]."""
        prior = self._class_effects().take(class_ids & (NUM_CLASSES - 1), axis=1)
        information, score = self._state[:2].take(rows, axis=2)
        variance = 1.0 / (information + self._spread.strength)
        return np.stack([(score + self._spread.strength * prior) * variance, variance])

    def variance(self, rows: np.ndarray, class_ids: np.ndarray, pool_variance: np.ndarray) -> np.ndarray:
        """Variance of a request's log-odds, float [D, R], given that of its pools' (float [D, R])."""
        class_variance = 1.0 / (self._class_shares() + CLASS_STRENGTH)
        above = pool_variance + class_variance.take(class_ids & (NUM_CLASSES - 1), axis=1)
        precision = self._state[0].take(rows, axis=1) + self._spread.strength
        return 1.0 / precision + (self._spread.strength / precision) ** 2 * above

    def learn(self, rows: np.ndarray, effects: np.ndarray, information: np.ndarray, residual: np.ndarray) -> None:
        """One step's evidence of these table rows, predicted with these effects, all float [D, R]; 0 where none."""
        is_tracked = rows < self._num_rows  # of two requests that claim one row, the loser is not
        information, residual = information * is_tracked, residual * is_tracked
        classes = self._classes.take(rows)
        known, score, variance, *residual_sum = self._state.take(rows, axis=2)
        keep, class_keep, *residual_sum = self._detect_change(classes, known, information, residual, *residual_sum)
        keep *= REQUEST_FADE
        faded = (1.0 - REQUEST_FADE) * _shares(known, score, self._spread.strength)
        known = keep * known + information
        score = keep * score + residual + information * effects
        variance = keep**2 * variance + information
        self._state[:, :, rows] = known, score, variance, *residual_sum
        shares = _shares(known, score, self._spread.strength)
        sums = _sum_by_class(classes, faded, shares)
        faded, self._present = _halves(sums)
        self._present_rows = rows
        self._spread.learn(known, *self._deviations(known, score, shares, classes), variance)
        memory = CLASS_FADE * class_keep * np.exp(-faded[: self._num_drafters] / (CLASS_MEMORY * self._spread.strength))
        self._past *= np.concatenate([memory, memory])
        self._past += faded

    def forget(self, request_id: int) -> None:
        """Drop a request; what it taught stays with its class. Unknown ones are ignored."""
        row = request_id & (self._num_rows - 1)
        if self._ids[row] != request_id or request_id == _NOBODY:
            return
        rows, classes = np.array([row]), self._classes[row : row + 1]
        known, score, variance = self._state[:3, :, rows]
        share = _shares(known, score, self._spread.strength)
        if not (self._present_rows == row).any():  # preempted, say, and then given up
            self._present[:, classes] += share
        self._spread.remember(known, *self._deviations(known, score, share, classes), variance)
        memory = 1.0 - share[: self._num_drafters] / (CLASS_MEMORY * self._spread.strength)
        self._past[:, classes] = self._past[:, classes] * np.concatenate([memory, memory]) + share
        self._present[:, classes] -= share
        self._state[:, :, row] = 0.0
        self._ids[row] = _NOBODY

    def _deviations(
        self, information: np.ndarray, score: np.ndarray, shares: np.ndarray, classes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """How far scores are from what the mean of the class would give, and which part of that mean is others': float
        [D, R] each."""
        total, estimates = _halves((self._present + self._past).take(classes, axis=1))
        total = np.maximum(total, _LITTLE)
        shares = shares[: self._num_drafters]
        return score - information * estimates / total, 1.0 - np.minimum(shares / total, 1.0)

    def _class_effects(self) -> np.ndarray:
        """float [D, NUM_CLASSES]."""
        shares, estimates = _halves(self._present + self._past)
        return estimates / (shares + CLASS_STRENGTH)

    def _class_shares(self) -> np.ndarray:
        """float [D, NUM_CLASSES]."""
        return (self._present + self._past)[: self._num_drafters]

    def _detect_change(
        self,
        classes: np.ndarray,
        known: np.ndarray,
        information: np.ndarray,
        residual: np.ndarray,
        residual_sum: np.ndarray,
        total_variance: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """How much of the evidence of each row [D, R] and each class [D, NUM_CLASSES] is still to be believed, and the
        rows' new sums of residuals and their variances [D, R]."""
        # Residuals scatter by chance and, all in one direction, by what is not yet known of the effect.
        variance = information + information**2 / (known + self._spread.strength)
        residual_sum = RESIDUAL_FADE * residual_sum + residual
        total_variance = RESIDUAL_FADE**2 * total_variance + variance
        sums = _sum_by_class(classes, residual, variance, information).reshape(3, -1, NUM_CLASSES)
        doubt = sums[2] ** 2 / (self._class_shares() + CLASS_STRENGTH)
        self._class_residual = RESIDUAL_FADE * self._class_residual + sums[0]
        self._class_residual_variance = RESIDUAL_FADE**2 * self._class_residual_variance + sums[1] + doubt
        class_keep = _belief(self._class_residual, self._class_residual_variance)
        keep = np.minimum(_belief(residual_sum, total_variance), class_keep.take(classes, axis=1))
        return keep, class_keep, residual_sum, total_variance


def _halves(lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return lines[: len(lines) // 2], lines[len(lines) // 2 :]


def _shares(information: np.ndarray, score: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Shares in the class and shares times the requests' own estimates: float [2 D, R]."""
    part = strength / (information + strength)
    return np.concatenate([part * information, part * score])


def _belief(residual_sum: np.ndarray, variance: np.ndarray) -> np.ndarray:
    excess = residual_sum**2 / (variance + MIN_RESIDUAL_VARIANCE) - CHANGE_THRESHOLD
    return 1.0 / (1.0 + FORGETTING * np.maximum(excess, 0.0))


def _sum_by_class(classes: np.ndarray, *values: np.ndarray) -> np.ndarray:
    """Sums over the rows of each class: float [N, NUM_CLASSES] of N lines of values, float [lines, R] each."""
    lines = np.concatenate(values)
    bins = (classes + NUM_CLASSES * np.arange(len(lines))[:, None]).ravel()
    return np.bincount(bins, lines.ravel(), NUM_CLASSES * len(lines)).reshape(-1, NUM_CLASSES)
