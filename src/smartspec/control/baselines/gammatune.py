"""A GammaTune-style heuristic: follow the accepted length, and go beyond it when everything was accepted."""

from dataclasses import replace

import numpy as np

from smartspec.control.baselines.baseline import cut_stragglers, usual_model
from smartspec.control.baselines.hf import stop_below
from smartspec.control.baselines.request_table import RequestTable
from smartspec.control.policy import Estimates, Policy, plan_of_lengths
from smartspec.control.records import BatchView, Outcome, Plan

SMOOTHING = 0.2
START_LENGTH, MIN_LENGTH, MAX_LENGTH = 5, 1, 16
REACH = 2  # how much longer after full acceptance


class GammaTune(Policy):
    """Length per request: +2 after full acceptance, else one more than the smoothed accepted length (1 to 16).

    The exact rule of GammaTune (arXiv 2504.00030) is not public; its abstract names accepted counts, exponential
    smoothing and a switch between modes, and the rule and constants here are one reading of that. Results should be
    labelled "GammaTune-style". It served one sequence: here each request has its length, and drafts of the draft model
    are cut at their mean over the batch as in DSDE. stop_threshold: where given (GammaTune+ style, 0.3), they also end
    after a token of smaller largest probability.
    """

    def __init__(self, stop_threshold: float = 0.0):
        self.stop_threshold = stop_threshold
        self._requests = RequestTable(length=START_LENGTH, smoothed=START_LENGTH - 1.0)

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        rows, columns = self._requests.rows(view.request_ids), self._requests
        columns["length"][rows] = np.minimum(columns["length"][rows], estimates.max_draft_tokens)
        lengths = cut_stragglers(columns["length"][rows], usual_model(view, estimates))
        plan = plan_of_lengths(view, estimates, lengths)
        return replace(plan, stop=stop_below(self.stop_threshold)) if self.stop_threshold else plan

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        was_drafted = outcome.verified > 0
        rows = self._requests.rows(outcome.view.request_ids[was_drafted])
        accepted, verified = outcome.accepted[was_drafted], outcome.verified[was_drafted]
        smoothed, lengths = self._requests["smoothed"], self._requests["length"]
        smoothed[rows] += SMOOTHING * (accepted - smoothed[rows])
        # Full acceptance hides how much more would have been accepted: an average alone could never rise above it.
        tracked = np.rint(smoothed[rows]).astype(np.int64) + 1
        adapted = np.where(accepted == verified, lengths[rows] + REACH, tracked)
        lengths[rows] = np.clip(adapted, MIN_LENGTH, MAX_LENGTH)

    def end(self, request_id: int) -> None:
        self._requests.forget(request_id)
