"""Ranks that a recorded step tells about its drafts: after every right node, the rank of the right
child.

A drafter's children stand likeliest first (see trees). What was tested says for some depths which
rank is right, for others how many of the first are wrong.
"""

import numpy as np

from smartspec.control import Outcome
from smartspec.control.records import depths_of

UNKNOWN = -1
ALL = 2**15  # more ranks than there are


def recorded_ranks(outcome: Outcome, num_depths: int) -> np.ndarray:
    """rank and wrong, as in DraftOutcomes, of the drafts that were verified: int [2, R,
    num_depths]."""
    successes, has_ended = successes_of(outcome)
    rows, depths = np.arange(len(successes)), np.arange(num_depths)
    rank = np.where(depths < successes[:, None], 0, UNKNOWN)
    num_wrong = (successes < outcome.tested).astype(np.int64)
    if outcome.parents is not None and outcome.node_tests is not None:
        parents, tests = outcome.parents, outcome.node_tests
        of_row, node = np.nonzero(tests == 1)
        rank[of_row, depths_of(parents)[of_row, node] - 1] = child_ranks(parents)[of_row, node]
        num_wrong = ((parents == _last_accepted(outcome)[:, None]) & (tests == 0)).sum(axis=1)
    wrong = np.where(has_ended[:, None] & (depths >= successes[:, None]), ALL, 0)
    is_inside = successes < num_depths
    wrong[rows[is_inside], successes[is_inside]] += num_wrong[is_inside]
    return np.stack([rank, wrong])


def successes_of(outcome: Outcome) -> tuple[np.ndarray, np.ndarray]:
    """Tokens accepted and kept, int [R], and whether the request ended with the last of them, bool
    [R]: tokens after it were verified, and not compared."""
    successes = np.minimum(outcome.accepted, outcome.tested)
    if outcome.parents is None or outcome.node_tests is None:
        return successes, (outcome.tested < outcome.verified) & (successes == outcome.tested)
    is_next = outcome.parents == _last_accepted(outcome)[:, None]
    is_next &= np.arange(outcome.parents.shape[1]) < outcome.verified[:, None]
    return successes, (is_next & (outcome.node_tests < 0)).any(axis=1)


def child_ranks(parents: np.ndarray) -> np.ndarray:
    """Child rank of each node, 0 for the top-1 child: int [..., K], as parents."""
    return np.tril(parents[..., :, None] == parents[..., None, :], -1).sum(axis=-1)


def _last_accepted(outcome: Outcome) -> np.ndarray:
    """The end of the accepted path, -1 where nothing was: int [R]."""
    assert outcome.node_tests is not None
    is_accepted = outcome.node_tests == 1
    # parents stand before their children
    last = is_accepted.shape[1] - 1 - is_accepted[:, ::-1].argmax(axis=1)
    return np.where(is_accepted.any(axis=1), last, -1)
