"""Outcomes of the drafts of a replayed step, from those in the log."""

from dataclasses import dataclass

import numpy as np

from smartspec.control import Plan
from smartspec.control.records import of_drafter
from smartspec.core.batch import Draft, shorten
from smartspec.core.draft_columns import lengths_of
from smartspec.sim.replay.draft_outcomes import DraftOutcomes
from smartspec.sim.world.trees import tree_tests


@dataclass(frozen=True)
class ReplayedOutcome:
    """accepted, tested, node_tests: as in Outcome. num_kept: int [R], tokens that each row emits.
    is_known: whether the log alone tells."""

    accepted: np.ndarray
    tested: np.ndarray
    num_kept: np.ndarray
    is_known: bool
    node_tests: np.ndarray | None = None


def of_chains(
    plan: Plan, verified: np.ndarray, draft_outcomes: list[DraftOutcomes]
) -> ReplayedOutcome:
    """The outcome of chains of which verified[i] tokens (int [R]) are verified."""
    shape = len(draft_outcomes), len(verified)  # of no drafters or no decoding rows as well
    num_accepted, num_known, max_emitted = (
        of_drafter(
            np.array(
                [getattr(of_drafts, name) for of_drafts in draft_outcomes], dtype=np.int64
            ).reshape(shape),
            plan.drafter,
        )
        for name in ("num_accepted", "num_known", "max_emitted")
    )
    accepted = np.minimum(num_accepted, verified)
    num_kept = np.minimum(accepted + 1, max_emitted) if draft_outcomes else np.ones_like(accepted)
    tested = np.minimum(np.minimum(verified, accepted + 1), num_kept)
    return ReplayedOutcome(accepted, tested, num_kept, is_known=bool((verified <= num_known).all()))


def of_trees(
    plan: Plan,
    drafts: tuple[Draft, ...],
    verified: np.ndarray,
    draft_outcomes: list[DraftOutcomes],
    num_nodes: int,
) -> ReplayedOutcome:
    """The outcome of drafts of ranks, of which verified[i] nodes (int [R]) are verified. num_nodes:
    K."""
    verified_drafts = list(map(shorten, drafts, verified.tolist()))
    drafters = np.maximum(plan.drafter, 0).tolist()  # without a draft it is all one
    pairs = zip(drafters, verified_drafts, strict=True)
    found = [
        draft_outcomes[number].of_tree(row, draft) for row, (number, draft) in enumerate(pairs)
    ]
    paths = [path for path, _ in found]
    accepted = lengths_of(paths)
    num_kept = np.minimum(
        accepted + 1,
        of_drafter(np.array([of_drafts.max_emitted for of_drafts in draft_outcomes]), plan.drafter),
    )
    compared, tests = tree_tests(verified_drafts, paths, num_kept, num_nodes)
    return ReplayedOutcome(
        accepted=np.minimum(accepted, num_kept),
        tested=np.minimum(compared, num_kept),
        num_kept=num_kept,
        is_known=all(is_known for _, is_known in found),
        node_tests=tests,
    )
