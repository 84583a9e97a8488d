"""Catching up: tokens the draft model has not seen are fed once, and serve all later drafts of the request.

It is an investment. What a row's drafts bring beyond their own price, step for step and for as many steps as the
request is expected to live (see remaining_tokens; at most MAX_STEPS), has to exceed what catching up on it costs;
others do without drafts. Those that are to begin are charged to the step by the step's share, so that together they
have to pay for the draft passes too.

A row's age decides as much as the length of its prompt: with answers of 24 tokens a draft model of a billion parameters
does not pay behind prompts of 2,000; where half of the answers have 13 tokens or fewer but those of 32 have 63 to come,
it pays for the latter. Charged at the mean lifetime, and to all rows at once, drafts were off in a quarter of the steps
with prefill of a code trace: to begin with one row looked as dear as to begin with all.

No step catches up for longer than a plain step takes, or than one request needs: those nearest to being up to date
begin, the others wait.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from smartspec.control.planner.lengths import LengthPlan
from smartspec.control.policy import Estimates, expected_accepted
from smartspec.control.records import BatchView

MAX_STEPS = 160.0  # farther ahead nobody knows: loads change
ORDINARY_UNSEEN_TOKENS = 4  # what a row that drafts in every step has not seen: no investment


def begun(
    view: BatchView,
    use_model: np.ndarray,
    estimates: Estimates,
    remaining_tokens: np.ndarray | None,
    target_seconds: np.ndarray,
    value_of_time: float | None,
    plan: Callable[[np.ndarray, np.ndarray], LengthPlan],
) -> tuple[np.ndarray, np.ndarray]:
    """Which of the rows of use_model (bool [R]) are or should be caught up on, bool [R], and the time of 0..K draft
    passes over these with the share of catching up that this step is charged, float [K + 1].

    remaining_tokens: float [R], tokens each request is expected to make; None: many. target_seconds, value_of_time: see
    choice. plan: from rows that may use the model and what draft passes take to the best lengths.
    """
    latency, max_draft_tokens = estimates.latency, estimates.max_draft_tokens
    behind = use_model & (view.unseen_tokens > ORDINARY_UNSEEN_TOKENS)
    if not behind.any():
        return use_model, latency.draft_seconds(view, use_model, max_draft_tokens)
    up_to_date = replace(view, unseen_tokens=np.minimum(view.unseen_tokens, ORDINARY_UNSEEN_TOKENS))
    seconds = latency.draft_seconds(up_to_date, use_model, max_draft_tokens)
    best = plan(use_model, seconds)
    accepted = expected_accepted(estimates.survival(use_model), best.lengths)
    steps = np.full(view.num_rows, MAX_STEPS)
    if remaining_tokens is not None:
        steps = np.minimum(remaining_tokens / (1.0 + accepted), MAX_STEPS)
    invested = _investment(view, use_model, latency.draft_seconds(view, use_model, 1)[1] - seconds[1])
    price = best.goodput if value_of_time is None else value_of_time
    gains = view.weights * accepted - price * best.lengths * _token_seconds(best, target_seconds)
    worth_it = gains * steps * _worth_of_an_end(view) >= price * invested
    rows = use_model & (worth_it | ~behind)
    seconds = latency.draft_seconds(up_to_date, rows, max_draft_tokens)
    seconds[1:] += (invested / np.maximum(steps, 1.0))[rows & behind].sum()
    return rows, seconds


def without_late_starters(plan: LengthPlan, use_model: np.ndarray, view: BatchView, estimates: Estimates) -> LengthPlan:
    """The plan without drafts for rows that would make this step catch up for longer than a plain step takes; at least
    one begins."""
    starters = use_model & (plan.lengths > 0)
    if view.unseen_tokens.max(initial=0) <= ORDINARY_UNSEEN_TOKENS or not starters.any():
        return plan
    seconds = float(estimates.latency.draft_seconds(view, starters, 1)[-1])
    if seconds <= plan.off_seconds:
        return plan
    rows = np.flatnonzero(starters)
    rows = rows[np.argsort(view.unseen_tokens[rows], kind="stable")]
    fed_tokens = np.cumsum(view.unseen_tokens[rows] + 1)
    fits = fed_tokens <= fed_tokens[-1] * plan.off_seconds / seconds
    first_late = int((view.unseen_tokens[rows] > ORDINARY_UNSEEN_TOKENS).argmax())
    fits[: first_late + 1] = True  # or a long request could never begin
    lengths = plan.lengths.copy()
    lengths[rows[~fits]] = 0
    return replace(plan, lengths=lengths)


def _investment(view: BatchView, use_model: np.ndarray, seconds: float) -> np.ndarray:
    """Each row's part of the seconds it takes to catch up on all rows of use_model, float [R]."""
    unseen = np.where(use_model, view.unseen_tokens, 0)
    return seconds * unseen / unseen.sum()


def _token_seconds(plan: LengthPlan, target_seconds: np.ndarray) -> float:
    """What verifying one of the plan's draft tokens adds to the target pass, on average."""
    num_tokens = int(plan.lengths.sum())
    return float(target_seconds[num_tokens] - target_seconds[0]) / num_tokens if num_tokens else 0.0


def _worth_of_an_end(view: BatchView) -> np.ndarray:
    """What it is worth that a request ends sooner, relative to the others, float [R]: half for itself, half for the
    rest, who then need not wait while its context is read in every step, nor for its memory."""
    total = max(view.total_context_tokens, 1)
    return (1.0 + view.num_rows * view.context_tokens / total) / 2.0
