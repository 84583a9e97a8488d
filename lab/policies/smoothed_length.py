"""Smoothed length: follow the accepted length, and go beyond it when everything was accepted. A
rule of this project, without a model of time."""

import numpy as np

from lab.policies.baseline import cut_stragglers, usual_model
from lab.policies.request_table import RequestTable
from smartspec.control.estimates import Estimates
from smartspec.control.planning import plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Outcome, Plan

SMOOTHING = 0.2
START_LENGTH, MIN_LENGTH, MAX_LENGTH = 5, 1, 16
REACH = 2  # how much longer after full acceptance


class SmoothedLength(Policy):
    """Length per request: +2 after full acceptance, else one more than the smoothed accepted length
    (1 to 16).

    A simple rule that is hard to beat where verification is cheap: acceptance alone decides,
    request by request. Drafts of the draft model are cut at their mean over the batch as in DSDE.
    """

    def __init__(self):
        self._requests = RequestTable(length=START_LENGTH, smoothed=START_LENGTH - 1.0)

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        rows, columns = self._requests.rows(view.request_ids), self._requests
        columns["length"][rows] = np.minimum(columns["length"][rows], estimates.max_draft_tokens)
        lengths = cut_stragglers(columns["length"][rows], usual_model(view, estimates))
        return plan_of_lengths(view, estimates, lengths)

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        was_drafted = outcome.verified > 0
        rows = self._requests.rows(outcome.view.request_ids[was_drafted])
        accepted, verified = outcome.accepted[was_drafted], outcome.verified[was_drafted]
        smoothed, lengths = self._requests["smoothed"], self._requests["length"]
        smoothed[rows] += SMOOTHING * (accepted - smoothed[rows])
        # Full acceptance hides how much more would have been accepted: an average alone could never
        # rise above it.
        tracked = np.rint(smoothed[rows]).astype(np.int64) + 1
        adapted = np.where(accepted == verified, lengths[rows] + REACH, tracked)
        lengths[rows] = np.clip(adapted, MIN_LENGTH, MAX_LENGTH)

    def end(self, request_id: int) -> None:
        self._requests.forget(request_id)
