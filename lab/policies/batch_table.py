"""A table of lengths by batch size (Su, Giannoula and Pekhimenko, "The Synergy of Speculative
Decoding and Batching in Serving LLMs", arXiv 2310.18813)."""

import numpy as np

from lab.policies.profiling_run import read_best_lengths
from smartspec.control.estimates import Estimates
from smartspec.control.planning import plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Plan
from smartspec.sim.length_table import BATCH_SIZES, profile_table

PROFILE_ACCEPTANCE = 0.7


class BatchTable(Policy):
    """One length for the whole batch, looked up by the number of decoding requests, rounded up to a
    measured one. 0 is a candidate, so that the table may turn speculation off.

    As published, the table is made once and never changed. profile: a number, the acceptance of the
    profiling prompts, or the path of a profiling run (see profiling_run). With the path nothing is
    assumed. With the number, models replace two measurements. Times come from the profile of the
    first step, at 512 tokens of context per request. Tokens per position come from that acceptance
    (geometric).
    """

    def __init__(self, profile: float | str = PROFILE_ACCEPTANCE):
        self._acceptance: float | None = None
        if isinstance(profile, str):
            self._sizes, self._lengths = read_best_lengths(profile)
        else:
            self._acceptance = profile
            self._sizes, self._lengths = BATCH_SIZES, np.zeros(0, dtype=np.int64)

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        if self._acceptance is not None and not len(self._lengths):
            self._lengths = profile_table(estimates, self._acceptance)
        index = min(int(np.searchsorted(self._sizes, view.num_rows)), len(self._sizes) - 1)
        return plan_of_lengths(view, estimates, int(self._lengths[index]))
