"""AdaServe: verified tokens go first to requests that lag their objective, then wherever they are
likeliest to be accepted (arXiv 2501.12162; constants from the paper's artifact)."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lab.policies.baseline import trees_of
from lab.policies.request_table import RequestTable
from smartspec.control.estimates import Estimates, Latency
from smartspec.control.planning import no_drafts
from smartspec.control.policy import Policy
from smartspec.control.records import MAX_TREE_NODES, BatchView, Drafted, Outcome, Plan
from smartspec.sim.length_table import even_view

MAX_DEPTH, MAX_WIDTH = 8, 3
DRAFT_PASS_TOKENS = 96  # that a draft pass is fed, of all requests together
STEP_MARGIN = 1.05  # on the predicted time of the step, when working out how much a request lags
# of its even share of the budget that the objective phase may give to one request
SHARE_LIMIT = 1.2
PROFILE_CONTEXT_TOKENS = 512
PROFILE_DRAFT_TOKENS = np.array([0, 2048, 4096])


class AdaServe(Policy):
    """A budget of B tokens that a target pass verifies, one for each request, the rest for draft
    tokens, chosen after drafting. Prefill has a budget of its own, the engine's.

    Every request gets a draft of min(ceil(B / R), 8) passes, a tree of min(96 / R, 3) nodes a pass
    where its drafter makes trees. Then requests with a target (tpot_targets of the view's extras),
    those that lag most first, get their best nodes until they are expected to meet it; what is left
    of B goes to the likeliest nodes of all. Without targets only the second phase acts. The chance
    of a node is the product of the draft's confidences along its path, as published, and the
    controller's estimate where a draft has none (model-free ones).

    The cut leaves requests independent of each other. Chances never rise along a row. So to take
    the likeliest next node of all rows, one by one, gives the likeliest nodes of all. Whether a
    token is kept follows from tokens that are kept before it, of all rows, and never from how it
    was drawn itself. The same goes for objectives, which are met row by row.

    token_budget: B; None takes the knee of the profile (fixed time over marginal time per token),
    where the paper sets it by hand per accelerator (512). Departure: objectives order requests by
    descending need as in the paper (its code: ascending).
    """

    def __init__(self, token_budget: int | None = None):
        self.token_budget = token_budget
        self._requests = RequestTable(decode_seconds=0.0, num_tokens=0)

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        budget = self._budget(estimates.latency)
        plan = no_drafts(view.num_rows)
        if view.num_rows and _num_slots(view, budget) > 0:
            depth = min(math.ceil(budget / view.num_rows), MAX_DEPTH)
            width = max(1, min(DRAFT_PASS_TOKENS // view.num_rows, MAX_WIDTH))
            plan = trees_of(view, estimates, min(depth * width, MAX_TREE_NODES), depth, width)
        return replace(plan, settled=(view, estimates.latency))

    def cut(self, plan: Plan, drafted: Drafted, survival: Callable[[], np.ndarray]) -> np.ndarray:
        view, latency = plan.settled
        budget = self._budget(latency)
        slots = min(_num_slots(view, budget), int(plan.lengths.sum()))
        if slots <= 0:
            return np.zeros_like(drafted.lengths)
        chances = path_probabilities(drafted, survival())
        depth = int(plan.passes.max())
        seconds = float(latency.target_seconds(view, np.array([slots]))[0]) + latency.host_seconds
        seconds += float(latency.draft_seconds(view, plan.drafter, depth, plan.width)[:, -1].sum())
        needs = np.minimum(self._tokens_needed(view, seconds), depth + 1)
        limit = math.floor(SHARE_LIMIT * budget / view.num_rows)
        lengths = meet_objectives(chances, drafted.lengths, needs, limit, slots)
        return fill_budget(chances, drafted.lengths, lengths, slots)

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        rows = self._requests.rows(outcome.view.request_ids)
        self._requests["decode_seconds"][rows] += outcome.seconds.total
        self._requests["num_tokens"][rows] += outcome.accepted + 1

    def end(self, request_id: int) -> None:
        self._requests.forget(request_id)

    def _budget(self, latency: Latency) -> int:
        if self.token_budget is None:
            self.token_budget = knee(latency)
        return self.token_budget

    def _tokens_needed(self, view: BatchView, step_seconds: float) -> np.ndarray:
        """Tokens each request must emit in this step to meet its target, at least one: float
        [R]."""
        rows = self._requests.rows(view.request_ids)
        elapsed = self._requests["decode_seconds"][rows] + STEP_MARGIN * step_seconds
        targets = view.extras.get("tpot_targets", np.inf)
        return np.maximum(elapsed / targets - self._requests["num_tokens"][rows], 1.0)


def _num_slots(view: BatchView, token_budget: int) -> int:
    """Draft tokens that fit in the target pass beside one token of each request."""
    return min(token_budget - view.num_rows, view.draft_token_budget)


def knee(latency: Latency) -> int:
    """Tokens at which a pass turns from memory-bound to compute-bound: fixed time over time per
    further token."""
    one, many, more = latency.target_seconds(
        even_view(1, PROFILE_CONTEXT_TOKENS), PROFILE_DRAFT_TOKENS
    ).tolist()
    slope = (more - many) / float(PROFILE_DRAFT_TOKENS[2] - PROFILE_DRAFT_TOKENS[1])
    most = int(PROFILE_DRAFT_TOKENS[-1])
    return min(round(one / slope), most) if slope > 0 else most


def path_probabilities(drafted: Drafted, survival: np.ndarray) -> np.ndarray:
    """Chance that a node and all before it on its path are accepted: float [R, K], from confidence
    where there is any."""
    if drafted.confidence is None:
        return survival
    paths = np.nan_to_num(drafted.confidence, nan=0.0)
    has_confidence = np.isfinite(drafted.confidence[:, :1])
    if drafted.parents is None:
        return np.where(has_confidence, np.cumprod(paths, axis=1), survival)
    rows = np.arange(len(paths))
    for node in range(1, paths.shape[1]):  # parents stand before their children
        parents = drafted.parents[:, node]
        paths[:, node] *= np.where(parents < 0, 1.0, paths[rows, parents])
    return np.where(has_confidence, paths, survival)


def meet_objectives(
    chances: np.ndarray, drafted_lengths: np.ndarray, needs: np.ndarray, limit: int, slots: int
) -> np.ndarray:
    """Lengths (int [R]) that bring expected tokens up to needs (float [R], the sure token
    included), neediest first, until slots are used up; no request gets more than limit."""
    expected_before = 1.0 + np.cumsum(chances, axis=1) - chances
    is_drafted = np.arange(chances.shape[1]) < drafted_lengths[:, None]
    wanted = np.minimum(((expected_before < needs[:, None]) & is_drafted).sum(axis=1), limit)
    order = np.argsort(-needs, kind="stable")
    given_before = np.cumsum(wanted[order]) - wanted[order]
    lengths = np.empty_like(wanted)
    lengths[order] = np.clip(slots - given_before, 0, wanted[order])
    return lengths


def fill_budget(
    chances: np.ndarray, drafted_lengths: np.ndarray, lengths: np.ndarray, slots: int
) -> np.ndarray:
    """Lengths (int [R]) extended by the likeliest tokens left, up to slots in all."""
    positions = np.arange(chances.shape[1])
    is_left = (positions >= lengths[:, None]) & (positions < drafted_lengths[:, None])
    candidates = np.flatnonzero(is_left)
    best = candidates[np.argsort(-chances.ravel()[candidates], kind="stable")][
        : slots - int(lengths.sum())
    ]
    return lengths + np.bincount(best // chances.shape[1], minlength=len(lengths))
