"""The best choice where all drafts exist before the plan, in plain arithmetic: for few rows, the arrays of best_choice
cost more than its arithmetic.

It is the same choice (tests compare the two): the drafter of largest yield for each row, then the most valuable slots
of all drafts as far as they pay (see planner).
"""

from operator import itemgetter

import numpy as np

from smartspec.control.acceptance.table import ByPool
from smartspec.control.goodput.prices import Choice, Prices
from smartspec.control.planner.lengths import LengthPlan
from smartspec.control.policy import Estimates, EstimatesOfView
from smartspec.control.records import BatchView

_NONE = np.zeros((0, 0))
MAX_SLOTS = 512  # of all rows; of more, arrays are faster


def choice_of_found(view: BatchView, estimates: Estimates) -> Choice | None:
    """None where there is more to decide: many rows, prefill, trees, or a drafter with passes."""
    num_slots = view.num_rows * estimates.max_draft_tokens
    if not isinstance(estimates, EstimatesOfView) or not 0 < num_slots <= MAX_SLOTS or view.prefill_tokens:
        return None
    if estimates.models or any([drafter.confidence is not None for drafter in view.drafters]):
        return None
    drafter, slots = _valuable(view, estimates.acceptance.by_pool(view))
    sizes = np.arange(min(len(slots), view.draft_token_budget) + 1)
    target_seconds = estimates.latency.target_seconds(view, sizes)
    seconds = (target_seconds + estimates.latency.host_seconds).tolist()
    base = float(view.weights.sum())
    off = best = base / seconds[0]
    num_kept, gained = 0, 0.0
    for number, (minus_gain, _) in enumerate(slots[: len(seconds) - 1], 1):
        gained -= minus_gain
        if (goodput := (base + gained) / seconds[number]) > best:
            best, num_kept = goodput, number
    lengths = [0] * view.num_rows
    for _, row in slots[:num_kept]:
        lengths[row] += 1
    gain = best / off - 1.0 if base else 0.0
    plan = LengthPlan(np.array(lengths), 0, best, seconds[num_kept], off, seconds[0], gain)
    return Choice(plan, np.array(drafter), _NONE, target_seconds, Prices(best, off), _NONE, fairness=0.0, is_found=True)


def _valuable(view: BatchView, survival: ByPool) -> tuple[list[int], list[tuple[float, int]]]:
    """The drafter of each row, and all slots, most valuable first: minus what each is worth, and its row."""
    found = [
        (pools, len(pools) - 1, drafter.match_lengths.tolist(), drafter.lengths.tolist())
        for pools, drafter in zip(survival.pools, view.drafters, strict=True)
    ]
    drafters, slots = [], []
    for row, (cap, weight) in enumerate(zip(view.max_draft_tokens.tolist(), view.weights.tolist(), strict=True)):
        best: list[float] = []
        most, best_number = 0.0, -1
        for number, (pools, last, match_lengths, lengths) in enumerate(found):
            if lengths[row]:
                draft = survival.of[pools[min(match_lengths[row], last)]][row][: min(lengths[row], cap)]
                if (accepted := sum(draft)) > most:
                    best, most, best_number = draft, accepted, number
        drafters.append(best_number)
        slots += [(-weight * chance, row) for chance in best]
    slots.sort(key=itemgetter(0))
    return drafters, slots
