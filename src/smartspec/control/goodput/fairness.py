"""Whose tokens count: which mean of the requests' tokens is maximised.

Under closed-loop arrivals tokens per second are the arithmetic mean, and it does not matter whose they are. Under
open-loop arrivals requests that draft badly stay longer and so are more of every later batch: plans that give them
little make the batch larger, and its slowest part slower. What counts there is the mean time per token, and its inverse
is the harmonic mean of the requests' speeds. By the arithmetic mean p99 on open-loop traces was up to 10 % longer
(docs/simulation.md).

It is a matter of draft models. For whom they work is a choice in every step; model-free drafts come now and then, and a
row without one in this step is not a slow request. Where there are both, every row can be drafted for in every step,
and whether some have a model-free draft now changes nothing in what counts: the mean would flicker with it.
"""

from smartspec.control.goodput.arrivals import Arrivals
from smartspec.control.policy import Estimates

HARMONIC = 2.0  # see planner; 0 is the arithmetic mean


def fairness_of(estimates: Estimates, arrivals: Arrivals) -> float:
    """The fairness of this step's plan, the alpha of Mo and Walrand 2000 (see planner): 0, the arithmetic mean, or
    HARMONIC where arrivals are open-loop and there is a draft model."""
    return HARMONIC if estimates.models and arrivals.are_open else 0.0
