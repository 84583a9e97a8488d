"""BanditSpec: draft lengths as arms of a bandit, by upper confidence bounds (UCBSpec of arXiv
2505.15141; constants from the authors' code, generate_utils.py)."""

import math

import numpy as np

from lab.policies.bandit import seconds_per_token
from smartspec.control.estimates import Estimates
from smartspec.control.planning import plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Outcome, Plan

MAX_LENGTH = 4  # arms are the lengths 1 to 4
WARMUP_ROUNDS = 2  # of all arms
EXPLORATION = 6.0


class BanditSpec(Policy):
    """One length for all requests: that of the largest mean tokens per second plus sqrt(6 ln t / n)
    after t steps, n of them with this length. It does not know the load and is never off.

    Departures: tokens per second are divided by the best mean, so that a bound of about 1 means
    something. The code divides by the steps of all arms together, which is the same for each arm
    and so explores nothing after its two rounds; here, as in the paper, by those of the arm. One
    bandit learns from all requests, as batches change in every step; the code begins anew with
    every batch.
    """

    def __init__(self, max_length: int = MAX_LENGTH):
        self.max_length = max_length
        self._counts = np.zeros(max_length, dtype=np.int64)
        self._means = np.zeros(max_length)  # tokens per second of a request

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        num_arms = min(self.max_length, estimates.max_draft_tokens)
        return plan_of_lengths(view, estimates, 1 + self._arm(num_arms))

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        seconds, longest = seconds_per_token(outcome), int(outcome.plan.lengths.max(initial=0))
        if seconds is None or not 0 < longest <= self.max_length:
            return
        self._counts[longest - 1] += 1
        self._means[longest - 1] += (1 / seconds - self._means[longest - 1]) / self._counts[
            longest - 1
        ]

    def _arm(self, num_arms: int) -> int:
        counts = self._counts[:num_arms]
        if counts.min() < WARMUP_ROUNDS:
            return int(counts.argmin())
        bounds = np.sqrt(EXPLORATION * math.log(counts.sum()) / counts)
        return int((self._means[:num_arms] / self._means.max() + bounds).argmax())
