"""Drafts of a step as the controller sees them: columns of numbers, and the outcome of each
node."""

from collections.abc import Sequence, Sized

import numpy as np

from smartspec.control import Drafted
from smartspec.core.batch import Draft, Verification, no_tokens


def drafted_of(drafts: Sequence[Draft], num_nodes: int) -> Drafted:
    """All columns of these drafts. num_nodes: K."""
    if not any(drafts):
        return Drafted(no_tokens(len(drafts)))
    return Drafted(
        lengths_of(drafts), confidence_of(drafts, num_nodes), parents_of(drafts, num_nodes)
    )


def lengths_of(drafts: Sequence[Sized]) -> np.ndarray:
    """int [R], of drafts, or of what else has a length."""
    return np.array([len(draft) for draft in drafts], dtype=np.int64)


def confidence_of(drafts: Sequence[Draft], num_nodes: int) -> np.ndarray | None:
    """float [R, num_nodes], NaN where there is none; None where no draft has any."""
    confident = [
        row for row, draft in enumerate(drafts) if draft.confidence is not None and len(draft)
    ]
    if not confident:
        return None
    confidence = np.full((len(drafts), num_nodes), np.nan)
    for row in confident:
        confidence[row, : len(drafts[row])] = drafts[row].confidence
    return confidence


def parents_of(drafts: Sequence[Draft], num_nodes: int) -> np.ndarray | None:
    """int [R, num_nodes], after the end of a draft those of a chain; None where all drafts are
    chains."""
    trees = [row for row, draft in enumerate(drafts) if not draft.is_chain]
    if not trees:
        return None
    parents = np.tile(np.arange(-1, num_nodes - 1), (len(drafts), 1))
    for row in trees:
        parents[row, : len(drafts[row])] = drafts[row].parents
    return parents


def num_compared(draft: Draft, verification: Verification) -> int:
    """The number of times that the walk down a verified draft had a token to compare the target's
    with."""
    path = _accepted_nodes(verification)
    return len(path) + bool((draft.parents == (path[-1] if path else -1)).any())


def node_tests(
    drafts: Sequence[Draft],
    verifications: Sequence[Verification],
    num_kept: np.ndarray,
    num_nodes: int,
) -> np.ndarray:
    """The result of each node of the verified drafts, 1 for accepted and 0 for rejected: int [R,
    num_nodes], -1 where it was not compared, or is after the tokens that were kept (int [R])."""
    tests = np.full((len(drafts), num_nodes), -1)
    for of_row, draft, verification, num in zip(
        tests, drafts, verifications, num_kept.tolist(), strict=True
    ):
        path = list(_accepted_nodes(verification))
        of_row[: len(draft)][np.isin(draft.parents, [-1, *path][:num])] = 0
        of_row[path[:num]] = 1
    return tests


def _accepted_nodes(verification: Verification) -> Sequence[int]:
    """Nodes of its draft, root first."""
    nodes = verification.accepted_nodes
    return range(verification.num_accepted) if nodes is None else nodes
