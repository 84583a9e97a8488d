"""The best plan where all drafts exist before it, in plain arithmetic: for few rows, arrays cost more than that.

It is the plan of the arrays (tests compare the two): the drafter of largest yield for each row, then the most valuable
slots of all drafts as far as they pay (see planner).
"""

from operator import itemgetter

import numpy as np

from smartspec.control.acceptance.table import OddsAgainst
from smartspec.control.planner.lengths import LengthPlan, objective, relative_gain
from smartspec.control.policy import Estimates, EstimatesOfView
from smartspec.control.records import BatchView

MAX_SLOTS = 512  # of all rows; of more, arrays are faster


def are_few(view: BatchView, estimates: Estimates) -> bool:
    """Whether plan_found can plan the drafts of this step that exist: few rows, and these drafts are all chains."""
    return (
        isinstance(estimates, EstimatesOfView)
        and 0 < view.num_rows * estimates.max_draft_tokens <= MAX_SLOTS
        and all([drafter.confidence is None for drafter in view.drafters])
    )


def plan_found(
    view: BatchView, estimates: Estimates, num_considered: int, value_of_time: float | None
) -> tuple[LengthPlan, np.ndarray, np.ndarray]:
    """The best lengths of at most so many tokens together; the drafter of each row, int [R], -1 where its length is 0;
    and the seconds of the target pass with 0..N tokens, float [N + 1], N as many as there are. value_of_time:
    see planner."""
    assert estimates.acceptance is not None, "odds by pool are the estimator's"
    drafter, slots = _valuable(view, estimates.models, estimates.acceptance.odds_against(view))
    target_seconds = estimates.latency.target_seconds(view, np.arange(min(len(slots), num_considered) + 1))
    seconds = (target_seconds + estimates.latency.host_seconds).tolist()
    base, gained, num_kept = sum(view.weights.tolist()), 0.0, 0
    off = best = objective(base, seconds[0], value_of_time)
    for number, (minus_gain, _) in enumerate(slots[: len(seconds) - 1], 1):
        gained -= minus_gain
        emitted = base + gained
        value = emitted / seconds[number] if value_of_time is None else emitted - value_of_time * seconds[number]
        if value > best:
            best, num_kept = value, number
    lengths, emitted = [0] * view.num_rows, base
    for minus_gain, row in slots[:num_kept]:
        lengths[row] += 1
        emitted -= minus_gain
    plan = LengthPlan(
        np.array(lengths),
        depth=0,
        goodput=emitted / seconds[num_kept],
        seconds=seconds[num_kept],
        off_goodput=base / seconds[0],
        off_seconds=seconds[0],
        gain=relative_gain(best, off, base, value_of_time),
    )
    drafter = [number if length else -1 for number, length in zip(drafter, lengths, strict=True)]
    return plan, np.array(drafter), target_seconds


def _valuable(view: BatchView, models: list[int], against: OddsAgainst) -> tuple[list[int], list[tuple[float, int]]]:
    """The drafter of each row, not one of models, and all slots, most valuable first: minus what each is worth, and its
    row."""
    found = [(n, each.match_lengths.tolist(), each.lengths.tolist()) for n, each in enumerate(view.drafters)]
    found = [of_drafter for of_drafter in found if of_drafter[0] not in models]
    drafters, slots = [], []
    for row, (cap, weight) in enumerate(zip(view.max_draft_tokens.tolist(), view.weights.tolist(), strict=True)):
        best: list[float] = []
        most, best_number = 0.0, -1
        for number, match_lengths, lengths in found:
            if lengths[row]:
                draft = against.survival(number, row, match_lengths[row], min(lengths[row], cap))
                if (accepted := sum(draft)) > most:
                    best, most, best_number = draft, accepted, number
        drafters.append(best_number)
        slots += [(-weight * chance, row) for chance in best]
    slots.sort(key=itemgetter(0))
    return drafters, slots
