"""SmartSpec as published: one goodput-optimal length for the batch, or that budget split by
acceptance.

Liu et al., "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput", arXiv
2406.14066, with the constants of the authors' prototype. What both policies keep: acceptance is one
rate per token (survival a^j). Time is a linear model that is fitted once. The choice is made every
few steps and reused in between. Acceptance is learned only while speculating. Draft prefill has no
price. What they leave out because it is a defect of the prototype and no part of the algorithm:
decode rows counted twice in the tokens fed, the search over lengths that ends at the first drop (it
costs up to 6 %: here every length is evaluated), and requests barred from speculation for good once
it paused.
"""

from collections import deque

import numpy as np

from lab.policies.linear_latency import LinearLatency
from lab.policies.request_table import RequestTable
from smartspec.control.estimates import Estimates
from smartspec.control.planning import length_caps, model_free_first, no_drafts, plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Outcome, Plan

BATCH_START = 0.7
BATCH_WEIGHT = 0.15  # of the newest step in the moving average
BATCH_INTERVAL = 20  # steps between decisions
BATCH_MARGIN = 0.1  # speculation must be predicted to win by this much
REQUEST_START = 0.5
REQUEST_WINDOW = 100  # steps averaged over
REQUEST_INTERVAL = 200
# Nothing is learned of requests that do not draft: while there are any, every 200th step drafts the
# full length for all, as in the authors' second prototype. Without it they never would again.
PROBE_INTERVAL = 200


class SmartSpecPaper(Policy):
    """One length for all requests (batch level): acceptance smoothed with weight 0.15 from 0.7, a
    new decision every 20 steps, speculation only where it is predicted to win by 10 %.

    The prototype divides accepted by drafted tokens, looking past rejections too; hosts only see
    tested positions, so accepted and tested tokens are smoothed and divided, which estimates the
    same rate without bias.
    """

    margin = BATCH_MARGIN

    def __init__(self, interval: int = BATCH_INTERVAL):
        self.interval = interval
        self._latency: LinearLatency | None = None
        self._length = 0
        self._step = 0
        self._accepted, self._tested = BATCH_START, 1.0

    @property
    def acceptance(self) -> float:
        """Estimated acceptance per token."""
        return self._accepted / self._tested

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        if not view.num_rows:
            return no_drafts(0)
        if self._step % self.interval == 0:
            self._length = self._best_length(view, estimates)
        self._step += 1
        lengths = self._lengths(view)
        if self._step % PROBE_INTERVAL == 0 and np.min(lengths) == 0:
            lengths = estimates.max_draft_tokens
        return plan_of_lengths(view, estimates, lengths)

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        if outcome.tested.any():
            self._accepted += BATCH_WEIGHT * (float(outcome.accepted.sum()) - self._accepted)
            self._tested += BATCH_WEIGHT * (float(outcome.tested.sum()) - self._tested)

    def _lengths(self, view: BatchView) -> np.ndarray | int:
        return self._length

    def _best_length(self, view: BatchView, estimates: Estimates) -> int:
        if self._latency is None:
            self._latency = LinearLatency.fit(estimates)
        drafter = model_free_first(view, estimates)
        by_model = estimates.has_passes(drafter)
        num_drafting = int((length_caps(view, drafter, estimates.max_draft_tokens) > 0).sum())
        lengths = np.arange(estimates.max_draft_tokens + 1)
        goodput = batch_goodput(
            self._latency, self.acceptance, view, by_model, num_drafting, lengths
        )
        goodput[num_drafting * lengths > view.draft_token_budget] = -1.0
        goodput[0] *= 1.0 + self.margin
        return int(goodput.argmax())


class SmartSpecRequest(SmartSpecPaper):
    """The batch's budget split over requests in proportion to their acceptance (request level, the
    authors' second prototype): rates over the last 100 steps, 0.5 before the first, a new decision
    every 200 steps, no margin.

    The prototype divides accepted by drafted tokens, which takes 0.54 for a true 0.8 at five draft
    tokens; here accepted is divided by tested tokens. The start counts as one token tested, so that
    a request is not given up for its first rejection. What remains, as published: a request whose
    share rounds to 0 is not tried again for long.
    """

    margin = 0.0

    def __init__(self, interval: int = REQUEST_INTERVAL):
        super().__init__(interval)
        no_history = np.zeros(REQUEST_WINDOW, dtype=np.int16)
        self._requests = RequestTable(num_steps=0, accepted=no_history, tested=no_history)
        self._recent: deque[tuple[int, int]] = deque(maxlen=REQUEST_WINDOW)

    @property
    def acceptance(self) -> float:
        accepted, tested = np.sum(self._recent, axis=0) if self._recent else (0, 0)
        return float((accepted + REQUEST_START) / (tested + 1))

    def request_acceptance(self, request_ids: np.ndarray) -> np.ndarray:
        """Estimated acceptance per token of each request: float [R]."""
        rows = self._requests.rows(request_ids)
        accepted, tested = (
            self._requests[name][rows].sum(axis=1) for name in ("accepted", "tested")
        )
        return (accepted + REQUEST_START) / (tested + 1)

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        was_tested = outcome.tested > 0
        if not was_tested.any():
            return
        accepted, tested = outcome.accepted[was_tested], outcome.tested[was_tested]
        self._recent.append((int(accepted.sum()), int(tested.sum())))
        rows = self._requests.rows(outcome.view.request_ids[was_tested])
        oldest = self._requests["num_steps"][rows] % REQUEST_WINDOW
        self._requests["accepted"][rows, oldest] = accepted
        self._requests["tested"][rows, oldest] = tested
        self._requests["num_steps"][rows] += 1

    def end(self, request_id: int) -> None:
        self._requests.forget(request_id)

    def _lengths(self, view: BatchView) -> np.ndarray | int:
        return proportional_split(self._length, self.request_acceptance(view.request_ids))


def batch_goodput(
    latency: LinearLatency,
    acceptance: float,
    view: BatchView,
    by_model: np.ndarray,
    num_drafting: int,
    lengths: np.ndarray,
) -> np.ndarray:
    """Predicted tokens per second when num_drafting rows carry drafts of one length: float, for
    each of lengths.

    A drafting row emits (1 - a^(k+1)) / (1 - a) tokens, the others one. by_model: bool [R], rows
    that draft in passes.
    """
    emitted = num_drafting * np.cumsum(acceptance**lengths) + (view.num_rows - num_drafting)
    context = float(view.context_tokens.sum()) + view.prefill_context_tokens
    seconds = latency.target_seconds(context, view.ordinary_tokens + num_drafting * lengths)
    drafting_context = float(view.context_tokens[by_model].sum())
    return emitted / (
        seconds
        + latency.draft_seconds(drafting_context, int(by_model.sum()), lengths)
        + latency.host
    )


def proportional_split(length: int, acceptance: np.ndarray) -> np.ndarray:
    """round(k R a_i / sum of a): int [R]. acceptance: float [R], positive."""
    return np.rint(length * acceptance / acceptance.mean()).astype(np.int64)
