"""Catching up: tokens the draft model has not seen are fed once, and serve all later drafts of the request.

Their cost is spread over the steps in which the request is expected to draft, as if all rows could begin at once; but
no step catches up for longer than a plain step takes, or than one request needs: those nearest to being up to date
begin, the others wait. (Asked only about those who may begin, whom no draft pass pays for, a full server never turned
drafts on again. Without those who are far behind in the comparison they never drafted, and long requests are the ones
whose memory a busy server most wants back.)

How many steps that will be is learned: as many as requests lately lived, at most MAX_STEPS, if drafts pay in all of
them, fewer where they pay in few. Answers of 24 tokens ended after 13 steps; over 160 steps whatever happens, catching
up a model of a billion parameters on their prompts of 2,000 made latency 10 % longer than without drafts. With a draft
model of a billion parameters, prompts of 14,000 tokens and a full server, requests were caught up on for a tenth of a
second and then hardly drafted: over 128 steps whatever happens, latency was 1.6 and 4.5 % above that without drafts.

Whether drafts pay in a step is asked with the cost spread over half a lifetime, and not looked up in what was done:
drafts that are off for a while would be a reason to keep them off. (They were: a model of a billion parameters that
had a bad start on conversations never drafted again, and latency was 10 % longer than with another seed.)
"""

from dataclasses import replace

import numpy as np

from smartspec.control.planner import LengthPlan
from smartspec.control.policies.base import Estimates
from smartspec.control.records import BatchView, StepFeedback

MAX_STEPS = 160.0  # a few hundred tokens
ENDED_RATE = 1 / 64  # about so many ended requests count
PRIOR_REQUESTS = 4.0  # that lasted MAX_STEPS, so that the first few to end do not decide
MIN_SHARE = 0.05  # so that a server that has not drafted for long may begin again
SHARE_RATE = 0.01  # per step
ORDINARY_UNSEEN_TOKENS = 4  # what a row that drafts in every step has not seen: no investment


class CatchUpHorizon:
    """Over how many steps the cost of catching up is spread; learned from how long requests decode and from the share
    of their steps in which drafts pay.

    Row steps over ended requests is the mean lifetime without the bias of a plain average, in which those that end
    early come first.
    """

    def __init__(self):
        self._share = 1.0  # of rows that the draft model paid for, lately
        self._num_ended, self._row_steps = PRIOR_REQUESTS, PRIOR_REQUESTS * MAX_STEPS
        self._decoded = np.zeros(0, dtype=np.int64)  # in the last step, request ids

    @property
    def lifetime(self) -> float:
        """Steps for which a request is expected to decode, at most MAX_STEPS."""
        return min(self._row_steps / self._num_ended, MAX_STEPS)

    @property
    def remaining(self) -> float:
        """Steps for which a request met at random still decodes: half a lifetime."""
        return self.lifetime / 2

    @property
    def steps(self) -> float:
        return self.lifetime * max(self._share, MIN_SHARE)

    def request_ended(self, request_id: int) -> None:
        """Learn that a request is gone; one that was not decoding says nothing."""
        if not (self._decoded == request_id).any():
            return
        self._num_ended = (1.0 - ENDED_RATE) * self._num_ended + 1.0
        self._row_steps *= 1.0 - ENDED_RATE

    def planned(self, rows_it_pays: int, num_rows: int) -> None:
        """Learn for how many rows drafts of the model pay in a step, as it is planned or were catching up spread over
        `remaining` steps."""
        if num_rows:
            self._share += SHARE_RATE * (rows_it_pays / num_rows - self._share)

    def observe(self, feedback: StepFeedback) -> None:
        """Learn from a finished step."""
        self._decoded = feedback.view.request_ids
        self._row_steps += feedback.view.num_rows


def charged_draft_seconds(
    view: BatchView, use_model: np.ndarray, estimates: Estimates, catch_up_steps: float
) -> np.ndarray:
    """Time of 0..K draft passes over the rows of use_model (bool [R]), with the share of catching up that this step is
    charged, in seconds: float [K + 1]. catch_up_steps: over how many steps it is spread."""
    latency, max_draft_tokens = estimates.latency, estimates.max_draft_tokens
    if view.unseen_tokens.max(initial=0) <= ORDINARY_UNSEEN_TOKENS:
        return latency.draft_seconds(view, use_model, max_draft_tokens)
    up_to_date = replace(view, unseen_tokens=np.minimum(view.unseen_tokens, ORDINARY_UNSEEN_TOKENS))
    seconds = latency.draft_seconds(up_to_date, use_model, max_draft_tokens)
    investment = latency.draft_seconds(view, use_model, 1)[1] - seconds[1]
    seconds[1:] += investment / catch_up_steps
    return seconds


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
