"""The expected goodput of draft lengths for the batch of a step, for people who watch the
server."""

from smartspec.control.estimates import Estimates
from smartspec.control.latency.model import LatencyModel
from smartspec.control.planning import expected_tokens, plan_of_lengths
from smartspec.control.records import BatchView, Plan


def uniform_goodput(view: BatchView, estimates: Estimates, latency: LatencyModel) -> list[float]:
    """Return the predicted (weighted) tokens per second of the batch if every request had a draft
    of 0, 1, ..., K tokens, or its longest where that is shorter."""
    lengths = range(estimates.max_draft_tokens + 1)
    return [
        planned_goodput(view, estimates, latency, plan_of_lengths(view, estimates, length))
        for length in lengths
    ]


def planned_goodput(
    view: BatchView, estimates: Estimates, latency: LatencyModel, plan: Plan
) -> float:
    """Return the same of a plan."""
    survival = estimates.of_width(plan.width).survival_of(plan.drafter)
    seconds = latency.predict(view, plan, plan.lengths).total
    return expected_tokens(view, survival, plan.lengths) / seconds
