"""DSDE: draft length by the stability of the divergence of draft from target (arXiv 2509.01083;
constants from the authors' code, vllm/spec_decode/dynamic_scheduler.py of their fork)."""

import numpy as np

from lab.policies.baseline import cut_stragglers, usual_model
from lab.policies.request_table import RequestTable
from smartspec.control.estimates import Estimates
from smartspec.control.planning import plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Outcome, Plan

# divergences remembered, and verified tokens of a request before its length follows the rule
WINDOW = 100
FADE = 0.9
START_LENGTH = 5
MIN_LENGTH, MAX_LENGTH = 6, 20
STEEPNESS = 2.0
FLAT_VARIANCE, FLAT_RATIO = 1e-6, 20.0


class Dsde(Policy):
    """Length per request by divergence of the last step and its recent instability, cut at the
    batch's mean.

    min_length: shortest draft after the warm-up. By default the published range 6 to 20 is scaled
    to the longest draft the host allows (20 gives 6, 8 gives 2). A minimum of 6 of 8 would leave
    little to decide. Departures: the temperature is not known here, so divergence is not divided by
    it (no difference at 0 and 1); the cut at the mean is over rows of the draft model, the only
    ones that wait for each other. For model-free drafts the divergence of a point mass is used, for
    heads that of the split into the drafted token and all others.

    There is no substitute for the signal: where the host reports no divergence, learn raises
    ValueError.
    """

    def __init__(self, min_length: int | None = None):
        self._min_length = min_length
        self._bounds = (1, MAX_LENGTH)
        self._requests = RequestTable(
            length=START_LENGTH,
            window=np.full(WINDOW, np.nan),  # newest first
            num_values=0,
            max_accepted=0,
            is_warm=False,
            shortest=0,
            longest=0,
        )

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        self._bounds = self._length_bounds(estimates.max_draft_tokens)
        rows = self._requests.rows(view.request_ids)
        is_counted = self._requests["is_warm"][rows] & usual_model(view, estimates)
        return plan_of_lengths(
            view, estimates, cut_stragglers(self._requests["length"][rows], is_counted)
        )

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        if not outcome.verified.any():
            return
        divergence = outcome.extras.get("divergence")
        if divergence is None:
            raise ValueError(
                "policy 'dsde' needs divergence in Outcome.extras, which this host does not "
                "compute: run it on a host that does, or choose another policy"
            )
        was_drafted = (outcome.verified > 0) & np.isfinite(divergence[:, 0])
        rows = self._requests.rows(outcome.view.request_ids[was_drafted])
        verified, accepted = outcome.verified[was_drafted], outcome.accepted[was_drafted]
        mean_divergence = self._remember(rows, divergence[was_drafted], verified)
        is_warm = self._requests["is_warm"][rows]
        self._warm_up(rows[~is_warm], verified[~is_warm], accepted[~is_warm])
        is_warm = self._requests["is_warm"][rows]
        self._follow_rule(rows[is_warm], mean_divergence[is_warm])

    def end(self, request_id: int) -> None:
        self._requests.forget(request_id)

    def _length_bounds(self, max_draft_tokens: int) -> tuple[int, int]:
        longest = min(MAX_LENGTH, max_draft_tokens)
        shortest = (
            round(MIN_LENGTH / MAX_LENGTH * longest)
            if self._min_length is None
            else self._min_length
        )
        return min(max(1, shortest), longest), longest

    def _remember(
        self, rows: np.ndarray, divergence: np.ndarray, verified: np.ndarray
    ) -> np.ndarray:
        """Put the divergences (float [R, K], the first `verified` of each row) in front; returns
        their means [R]."""
        windows, num_values = self._requests["window"], self._requests["num_values"]
        num_positions = divergence.shape[1]
        newest_first = np.concatenate([divergence[:, ::-1], windows[rows]], axis=1)
        columns = (num_positions - verified)[:, None] + np.arange(WINDOW)
        windows[rows] = np.take_along_axis(newest_first, columns, axis=1)
        num_values[rows] = np.minimum(num_values[rows] + verified, WINDOW)
        is_verified = np.arange(num_positions) < verified[:, None]
        return np.where(is_verified, divergence, 0.0).sum(axis=1) / verified

    def _warm_up(self, rows: np.ndarray, verified: np.ndarray, accepted: np.ndarray) -> None:
        """Double after full acceptance; with a full window, settle the request's own bounds."""
        columns, (shortest, longest) = self._requests, self._bounds
        columns["max_accepted"][rows] = np.maximum(columns["max_accepted"][rows], accepted)
        lengths = columns["length"][rows]
        lengths = np.where(accepted == verified, 2 * lengths, np.maximum(lengths, shortest))
        columns["length"][rows] = np.minimum(lengths, longest)
        rows = rows[columns["num_values"][rows] == WINDOW]
        windows, max_accepted = columns["window"][rows], columns["max_accepted"][rows]
        columns["shortest"][rows], columns["longest"][rows] = request_bounds(
            max_accepted, windows, shortest, longest
        )
        columns["is_warm"][rows] = True

    def _follow_rule(self, rows: np.ndarray, mean_divergence: np.ndarray) -> None:
        columns = self._requests
        ratio = instability(columns["window"][rows], columns["num_values"][rows])
        shortest, longest = columns["shortest"][rows], columns["longest"][rows]
        columns["length"][rows] = rule_length(mean_divergence, ratio, shortest, longest)


def instability(windows: np.ndarray, num_values: np.ndarray) -> np.ndarray:
    """Weighted variance of the newest third over that of all values: float [R], above 1 where it
    has grown lately.

    windows: float [R, W], newest first, num_values (int [R]) of each used; 0 below two values, 20
    where they are equal.
    """
    short, long = weighted_variances(
        windows, np.stack([np.maximum(num_values // 3, 1), np.maximum(num_values, 1)])
    )
    ratio = np.where(long < FLAT_VARIANCE, FLAT_RATIO, short / np.maximum(long, FLAT_VARIANCE))
    return np.where(num_values < 2, 0.0, ratio)


def weighted_variances(windows: np.ndarray, num_values: np.ndarray) -> np.ndarray:
    """Variance of the first num_values (int [N, R], at least 1) of each row with weights 0.9^j:
    float [N, R]."""
    weights = FADE ** np.arange(windows.shape[1])
    sums, squares = np.cumsum(weights * windows, axis=1), np.cumsum(weights * windows**2, axis=1)
    total, last = np.cumsum(weights)[num_values - 1], (np.arange(len(windows)), num_values - 1)
    return np.maximum(squares[last] / total - (sums[last] / total) ** 2, 0.0)


def rule_length(
    divergence: np.ndarray, ratio: np.ndarray, shortest: np.ndarray, longest: np.ndarray
) -> np.ndarray:
    """shortest + (longest - shortest) * (1 - ratio * (exp(2 divergence) - 1)), rounded up, not
    below shortest: int [R].

    divergence: mean over the last step in nats, float [R]; ratio: see instability.
    """
    penalty = ratio * np.expm1(STEEPNESS * np.maximum(divergence, 0.0))
    lengths = np.ceil((longest - shortest) * (1.0 - np.minimum(penalty, 1.0)) + shortest)
    return lengths.astype(np.int64)


def request_bounds(
    max_accepted: np.ndarray, windows: np.ndarray, shortest: int, longest: int
) -> tuple[np.ndarray, np.ndarray]:
    """A request's own shortest and longest length after the warm-up, int [R] each, within the given
    ones.

    max_accepted: int [R], most tokens accepted in one step; windows: float [R, W], divergences, all
    known.
    """
    largest = np.maximum(windows.max(axis=1, initial=0.0), 1e-12)
    upper = np.rint(max_accepted * (1.0 + 0.5 * windows.mean(axis=1) / largest)).astype(np.int64)
    upper = np.clip(upper, shortest, longest)
    return np.clip(np.ceil(0.1 * upper).astype(np.int64), shortest, upper), upper
