"""Steps whose drafts end, and are cut, by a confidence that is to be believed."""

import numpy as np
from factories import draw_chains, play_step

from smartspec.control import CostCurve, Drafted, Plan, StepSeconds


def drafted_of(plan: Plan, confidence: np.ndarray, entropy: np.ndarray) -> Drafted:
    """Drafts as an executor makes them: each drafter in passes, until the plan or its stop rule
    ends a row. confidence, entropy: float [R, K], of what would be drafted."""
    num_rows, longest = confidence.shape
    lengths = np.zeros(num_rows, dtype=np.int64)
    for drafter in range(int(plan.drafter.max()) + 1):
        active = np.flatnonzero(plan.lengths_of(drafter))
        for depth in range(longest):
            if not len(active):
                break
            lengths[active] += 1
            is_done = plan.lengths[active] == depth + 1
            if plan.stop is not None:
                is_done |= plan.stop(
                    depth, active, confidence[active, depth], entropy[active, depth]
                )
            active = active[~is_done]
    is_drafted = np.arange(longest) < lengths[:, None]
    return Drafted(lengths, np.where(is_drafted, confidence, np.nan))


def teach(controller, view, confidence, rng: np.random.Generator, target: CostCurve) -> None:
    """A step in which tokens are right as often as their confidence says, on that machine."""

    def drafted(plan):
        return drafted_of(plan, confidence, 1.0 - confidence)

    def told(plan, keep):
        seconds = StepSeconds(1e-3, float(target.seconds(len(keep) + int(keep.sum()))), 1e-4)
        return {"extras": {"divergence": np.zeros_like(confidence)}, "seconds": seconds}

    chains = draw_chains(rng, confidence, confidence.shape)
    play_step(controller, view, chains, told, drafted)
