"""GammaTune: go beyond the accepted length after full acceptance, else follow its average (arXiv
2504.00030, algorithm 1 as public notes and a public reimplementation of the paper give it)."""

from dataclasses import replace

import numpy as np

from lab.policies.baseline import cut_stragglers, usual_model
from lab.policies.hf import stop_below
from lab.policies.request_table import RequestTable
from smartspec.control.estimates import Estimates
from smartspec.control.planning import plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Outcome, Plan

SMOOTHING = 0.3
START_LENGTH, MIN_LENGTH, MAX_LENGTH = 3, 1, 10
REACH = 2  # how much longer than what was accepted, after full acceptance


class GammaTune(Policy):
    """Length per request. All accepted: accepted + 2, and the average stays. Otherwise the average
    moves towards the accepted tokens, within 1 to 10, and is rounded up.

    stop_threshold: where given, GammaTune+: drafts of the draft model also end after a token of
    smaller largest probability. Departures: the paper serves one sequence; here each request has
    its length, and drafts of the draft model are cut at their mean over the batch as in DSDE. The
    rule is the published one, but its constants were not found: smoothing 0.3, +2, a start at 3 and
    the range 1 to 10 are those of the reimplementation.
    """

    def __init__(self, stop_threshold: float = 0.0):
        self.stop_threshold = stop_threshold
        self._requests = RequestTable(length=START_LENGTH, average=float(START_LENGTH))

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        lengths = self._requests["length"][self._requests.rows(view.request_ids)]
        plan = plan_of_lengths(
            view, estimates, cut_stragglers(lengths, usual_model(view, estimates))
        )
        return replace(plan, stop=stop_below(self.stop_threshold)) if self.stop_threshold else plan

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        was_drafted = outcome.verified > 0
        rows = self._requests.rows(outcome.view.request_ids[was_drafted])
        accepted, verified = outcome.accepted[was_drafted], outcome.verified[was_drafted]
        average = self._requests["average"]
        is_full = accepted == verified
        moved = np.clip(
            average[rows] + SMOOTHING * (accepted - average[rows]), MIN_LENGTH, MAX_LENGTH
        )
        average[rows] = np.where(is_full, average[rows], moved)
        lengths = np.where(is_full, accepted + REACH, np.ceil(average[rows]))
        self._requests["length"][rows] = np.clip(lengths, MIN_LENGTH, MAX_LENGTH)

    def end(self, request_id: int) -> None:
        self._requests.forget(request_id)
