"""The drafts of a plan in a recorded step that ran another, tokens being ranks (see world.trees).

Drafts that existed before the plan are in the record's view. A drafter that makes trees in passes
would have made the first nodes of its recorded tree, or the chain of top-1 children in it. If there
is no recorded tree, or only a smaller one, a tree is grown from the drafter's acceptance over the
whole log.
"""

from dataclasses import replace

import numpy as np

from smartspec.control import DecisionRecord, Drafted, DrafterSpec, Plan
from smartspec.control.expected_tree import child_chances
from smartspec.core.batch import Draft, chain
from smartspec.sim.replay.hindsight import HindsightAcceptance
from smartspec.sim.simulated_drafter import stop_early
from smartspec.sim.world.recorded_ranks import child_ranks
from smartspec.sim.world.trees import grow_trees


def drafted_chains(record: DecisionRecord, plan: Plan, num_drafters: int) -> Drafted:
    """Confidence as recorded where the same drafter drafted; the plan's stop rule applied."""
    confidence = as_recorded(record, _chain_confidence(record), plan.drafter, plan.lengths)
    if confidence is None or plan.stop is None:
        return Drafted(plan.lengths, confidence)
    lengths, unknown = np.zeros_like(plan.lengths), np.full(confidence.shape, np.nan)
    for number in range(num_drafters):
        its_lengths = np.where(plan.drafter == number, plan.lengths, 0)
        lengths += stop_early(plan.stop, its_lengths, confidence, unknown)
    return Drafted(lengths, as_recorded(record, confidence, plan.drafter, lengths))


def tree_drafts(
    record: DecisionRecord,
    plan: Plan,
    drafters: tuple[DrafterSpec, ...],
    acceptance: HindsightAcceptance,
) -> tuple[Draft, ...] | None:
    """All drafts of a plan; None where none of its drafts would be a tree."""
    view, drafts = (
        record.view,
        [chain(np.zeros(length, dtype=np.int32)) for length in plan.lengths.tolist()],
    )
    is_tree = np.array(
        [*(view.drafters[n].parents is not None for n in range(len(drafters))), False]
    )
    is_grown = np.array([*(each.makes_trees and plan.width > 1 for each in drafters), False])
    rows = np.flatnonzero(plan.lengths > 0)
    if not (is_tree | is_grown)[plan.drafter[rows]].any():
        return None
    chances = _chain_confidence(record)
    for row in rows.tolist():
        number, length = int(plan.drafter[row]), int(plan.lengths[row])
        found = view.drafters[number]
        if found.parents is not None:
            drafts[row] = _first_nodes(found.parents, found.confidence, row, length)
        elif is_grown[number]:
            drafts[row] = _recorded(record, plan, row) or _grown(record, plan, row, acceptance)
        elif chances is not None and number == record.outcome.plan.drafter[row]:
            drafts[row] = replace(drafts[row], confidence=chances[row, :length])
    return tuple(drafts)


def as_recorded(
    record: DecisionRecord, values: np.ndarray | None, drafter: np.ndarray, lengths: np.ndarray
) -> np.ndarray | None:
    """Recorded values of the first lengths[i] tokens of drafts by the same drafter: float [R, K],
    NaN elsewhere."""
    if values is None:
        return None
    is_same = (drafter == record.outcome.plan.drafter)[:, None]
    return np.where(is_same & (np.arange(values.shape[1]) < lengths[:, None]), values, np.nan)


def _recorded(record: DecisionRecord, plan: Plan, row: int) -> Draft | None:
    """The first nodes of the row's recorded tree, if the same drafter made one that is large
    enough. One that a rule has ended is what a plan with such a rule would get."""
    then = record.outcome
    if (
        then.plan.width == 1
        or then.plan.drafter[row] != plan.drafter[row]
        or "chances" in plan.extras
    ):
        return None  # chances give a plan's trees a shape of their own
    length, drafted = int(plan.lengths[row]), int(then.drafted[row])
    if not drafted or (length > drafted and plan.stop is None):
        return None
    num_rows, num_nodes = record.view.num_rows, max(drafted, length)
    chains = np.broadcast_to(np.arange(-1, num_nodes - 1), (num_rows, num_nodes))
    parents = chains if then.parents is None else then.parents
    return _first_nodes(parents, then.confidence, row, min(length, drafted))


def _grown(record: DecisionRecord, plan: Plan, row: int, acceptance: HindsightAcceptance) -> Draft:
    number, chances = int(plan.drafter[row]), plan.extras.get("chances")
    if chances is None:
        rank_chances = acceptance.rank_chances(number)[: plan.width - 1]
        chances = child_chances(acceptance.conditional(record.view)[number, row], rank_chances)
    # A stop rule knows the rows of the whole step only, so each tree passes on its own row.
    stop = plan.stop and (lambda depth, rows, *what: plan.stop(depth, rows + row, *what))
    unknown = np.full((1, len(chances)), np.nan)
    (draft,), _ = grow_trees(chances[None], plan.lengths[[row]], plan.passes[[row]], stop, unknown)
    return draft


def _first_nodes(
    parents: np.ndarray, confidence: np.ndarray | None, row: int, length: int
) -> Draft:
    """parents, confidence: [R, K]."""
    of_row = parents[row, :length].astype(np.int32)
    known = None if confidence is None else confidence[row, :length]
    return Draft(child_ranks(of_row).astype(np.int32), of_row, confidence=known)


def _chain_confidence(record: DecisionRecord) -> np.ndarray | None:
    """The recorded confidence in the chain of top-1 children: float [R, K]."""
    confidence, parents = record.outcome.confidence, record.outcome.parents
    if confidence is None or parents is None:
        return confidence
    of_chain, ranks = np.full(confidence.shape, np.nan), child_ranks(parents)
    for row, drafted in enumerate(record.outcome.drafted.tolist()):
        last, depth = -1, 0
        for node in range(drafted):
            if parents[row, node] == last and not ranks[row, node]:
                of_chain[row, depth], last, depth = confidence[row, node], node, depth + 1
    return of_chain
