"""Whose tokens count: which mean of the requests' tokens is maximised.

Where whoever ends is replaced by its like, tokens per second are the arithmetic mean, and it does not matter whose they
are. Where requests come as they like, those that draft badly stay longer and so are more of every later batch: plans
that give them little make the batch larger, and its slowest part slower. What counts there is the mean time per token,
and its inverse is the harmonic mean of the requests' speeds. By the arithmetic mean p99 on open traces was up to 10 %
longer (docs/simulation.md).

It is a matter of draft models. For whom they work is a choice in every step; model-free drafts come now and then, and a
row without one in this step is not a slow request.
"""

from smartspec.control.goodput.arrivals import Arrivals
from smartspec.control.policy import Estimates
from smartspec.control.records import BatchView

HARMONIC = 2.0  # see planner; 0 is the arithmetic mean


def fairness_of(view: BatchView, estimates: Estimates, arrivals: Arrivals) -> float:
    """The fairness of this step's plan, the alpha of Mo and Walrand 2000 (see planner): 0, the arithmetic mean, or
    HARMONIC where arrivals are open and all drafts would be the draft model's."""
    model_free = [view.drafters[n] for n, drafter in enumerate(estimates.drafters) if not drafter.has_passes]
    if not estimates.models or any(drafter.lengths.any() for drafter in model_free):
        return 0.0
    return HARMONIC if arrivals.are_open else 0.0
