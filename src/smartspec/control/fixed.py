"""Policies that do not decide anything: plain decoding, and one length for all requests."""

from dataclasses import dataclass

from smartspec.control.estimates import Estimates
from smartspec.control.planning import no_drafts, plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Plan


class Off(Policy):
    """Never speculate."""

    uses_estimates = False

    def queries(self, num_rows: int) -> bool:
        return False

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        return no_drafts(view.num_rows)


@dataclass(frozen=True)
class Fixed(Policy):
    """Speculate with the same length for every request, as far as possible."""

    length: int

    uses_estimates = False

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        return plan_of_lengths(view, estimates, self.length)
