"""The interface of all policies: from estimates of acceptance and time to the number of draft
tokens of each request.

Every policy speculates without loss: lengths depend on load, history and confidence, never on
tokens that were sampled.
"""

from collections.abc import Callable

import numpy as np

from smartspec.control.estimates import Estimates
from smartspec.control.records import BatchView, Drafted, Outcome, Plan

LEARN_STEPS = 16


class Policy:
    """Decides draft lengths. A policy that learns keeps its own state. All methods but plan have a
    default."""

    # if False, the controller learns from few steps, for people who watch the server
    uses_estimates = True
    # Steps that the controller learns from together. After a target pass the code of learning is in
    # no cache, so that a run of it costs more than its arithmetic. Besides, nothing must be learned
    # from the first step alone: one rejected draft could end drafting at the start.
    learn_steps = LEARN_STEPS

    def queries(self, num_rows: int) -> bool:
        """Return True if drafters are queried for drafts in a step of so many decoding requests.
        Otherwise only drafts that cost nothing are made."""
        return True

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        """Return the number of tokens to draft for each row, and the drafters. Not called where no
        row can have a draft."""
        raise NotImplementedError

    def cut(self, plan: Plan, drafted: Drafted, survival: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the number of drafted tokens to verify: int [R], at most drafted.lengths.

        survival: returns that of the drafts as they were made, with their confidence: float [R, K],
        as in Estimates.

        The decision to keep a token must not depend on anything that is known only after the token
        is drawn: the confidence of the tokens after it, the length of its draft and, if a StopRule
        couples rows, the same of other rows. Prices must not depend on drawn tokens either.
        Otherwise the output is biased. Where the choice for a row depends on other rows, all their
        tokens must have one order in which they can be drawn: the decision about a token may depend
        only on those before it.
        """
        return drafted.lengths

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        """Learn from a finished step, any number of steps later and in any order. Where no row
        could have a draft, the plan is the controller's own."""

    def end(self, request_id: int) -> None:
        """Drop the estimates of a request that has ended; unknown ones are ignored."""

    def state(self) -> dict:
        """Return the policy's own state for people who watch the server, JSON-able."""
        return {}
