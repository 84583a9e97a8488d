"""A bound for chains: lengths by someone who knows which draft tokens are right."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from smartspec.control import BatchView, Estimates, Plan, Policy, plan_of_lengths
from smartspec.sim.world.step_time import GroundTruthTime


class PerfectOutcomes(Policy):
    """A policy in which every row drafts, in each step, the right tokens, up to the number of
    passes with the most tokens per second. So no wrong token is drafted or verified, which no
    policy that must guess can reach.

    outcomes: certain Estimates of a step, whose latency is the GroundTruthTime. What it does not
    know: which requests come, and what a step costs later ones. A draft prefill is taken for free
    when lengths are chosen, and paid.
    """

    def __init__(self, outcomes: Callable[[BatchView], Estimates]):
        self._outcomes = outcomes

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        known = self._outcomes(view)
        num_right, time = known.survival[0].sum(axis=1).astype(np.int64), known.latency
        assert isinstance(time, GroundTruthTime)
        prefilled = replace(
            view, drafters=tuple(replace(drafter, lag=None) for drafter in view.drafters)
        )
        plans = [
            plan_of_lengths(view, known, np.minimum(num_right, most))
            for most in range(num_right.max() + 1)
        ]
        return max(
            plans,
            key=lambda plan: _tokens_per_second(prefilled, plan, replace(time, jitter=0.0)),
        )


def _tokens_per_second(view: BatchView, plan: Plan, time: GroundTruthTime) -> float:
    """The tokens per second of a step in which all that is drafted is accepted."""
    lengths = plan.lengths_of(0)
    seconds = time.step_seconds(view, plan, lengths, lengths, np.random.default_rng(0))
    return float((view.num_rows + lengths.sum()) / seconds.total)
