"""The outcome of any draft in a recorded step: known as far as the log tells, then drawn.

After every right node a drafter's children stand likeliest first. So the target goes on with a
child of some rank, or with none (see world.trees); of a chain, all ranks but 0 are rejections. The
recorded tests tell for some depths which rank is right, and for others how many of the first ranks
are wrong.
"""

from dataclasses import dataclass, field

import numpy as np

from smartspec.control import DecisionRecord, DrafterSpec, DrafterView
from smartspec.control.expected_tree import child_chances
from smartspec.core.batch import Draft
from smartspec.sim.world.acceptance import count_leading
from smartspec.sim.world.recorded_ranks import ALL, UNKNOWN, recorded_ranks, successes_of
from smartspec.sim.world.trees import NO_RANK, right_path


@dataclass(frozen=True)
class DraftOutcomes:
    """Outcomes of drafts by one drafter, in all rows of a step."""

    # int [R, K], the right child after a right node of each depth as far as the log tells, else
    # UNKNOWN
    rank: np.ndarray
    wrong: np.ndarray  # int [R, K], children of lower ranks are known to be wrong
    # int [R, K], rank with what is unknown drawn, NO_RANK where no child is right
    right: np.ndarray
    # int [R], tokens after which the request ended (a large number where it did not)
    max_emitted: np.ndarray = field(repr=False)

    @property
    def num_accepted(self) -> np.ndarray:
        """Tokens of a chain of full length before the first rejection: int [R]."""
        return count_leading(self.right == 0)

    @property
    def num_known(self) -> np.ndarray:
        """Chains of up to this length have a recorded outcome: int [R]."""
        certain = count_leading(self.rank == 0)
        there = np.minimum(certain, self.rank.shape[1] - 1)
        rows = np.arange(len(certain))
        is_decided = (self.rank[rows, there] > 0) | (self.wrong[rows, there] > 0)
        return np.where(is_decided & (certain < self.rank.shape[1]), ALL, certain)

    def free_test(self, position: np.ndarray, found: DrafterView) -> tuple[np.ndarray, np.ndarray]:
        """True where the log tells what became of the token at that position (int [R]) of drafts
        that were found, and true where it was right: bool [R] each. Of trees, it covers only the
        children of the text."""
        if found.parents is None:
            is_told = (self.num_accepted >= position) & (position < self.num_known)
            return is_told, self.num_accepted > position
        nodes = np.arange(found.parents.shape[1])
        num_children = ((found.parents < 0) & (nodes < found.lengths[:, None])).sum(axis=1)
        is_told = (position == 0) & ((self.rank[:, 0] >= 0) | (self.wrong[:, 0] > 0))
        return is_told, (self.right[:, 0] >= 0) & (self.right[:, 0] < num_children)

    def of_tree(self, row: int, draft: Draft) -> tuple[tuple[int, ...], bool]:
        """The nodes of a draft of ranks that are accepted, root first, and whether the log alone
        tells."""
        path = right_path(draft, self.right[row])
        for depth, parent in enumerate((-1, *path)):
            children = draft.token_ids[draft.parents == parent]
            if (
                len(children)
                and self.rank[row, depth] < 0
                and children.max() >= self.wrong[row, depth]
            ):
                return path, False
        return path, True


def draft_outcomes_of(
    record: DecisionRecord,
    drafter: int,
    spec: DrafterSpec,
    conditional: np.ndarray,
    rank_chances: np.ndarray,
    uniform: np.ndarray,
) -> DraftOutcomes:
    """conditional, uniform: float [R, K]; a chain's token is accepted where uniform is below its
    conditional acceptance. rank_chances: float [ranks], chance of a second, third, ... child where
    the first is wrong."""
    outcome = record.outcome
    is_own = outcome.plan.drafter == drafter
    nothing = np.array([UNKNOWN, 0])[:, None, None]
    rank, wrong = np.where(is_own[:, None], recorded_ranks(outcome, uniform.shape[1]), nothing)
    successes, has_ended = successes_of(outcome)
    if drafter < len(outcome.free_tests) and not spec.has_passes:
        _add_free_tests(record, drafter, rank, wrong)
    edges = np.cumsum(child_chances(conditional, rank_chances), axis=-1)
    known_wrong = np.concatenate(
        [np.zeros((*wrong.shape, 1)), edges, np.ones((*wrong.shape, 1))], axis=-1
    )
    floor = np.take_along_axis(
        known_wrong, np.minimum(wrong, edges.shape[-1] + 1)[:, :, None], axis=-1
    )[:, :, 0]
    drawn = ((floor + uniform * (1.0 - floor))[:, :, None] >= edges).sum(axis=-1)
    drawn = np.where(drawn == edges.shape[-1], NO_RANK, drawn)
    return DraftOutcomes(
        rank=rank,
        wrong=wrong,
        right=np.where(rank >= 0, rank, drawn),
        max_emitted=np.where(has_ended & is_own, successes, ALL),
    )


def _add_free_tests(
    record: DecisionRecord, drafter: int, rank: np.ndarray, wrong: np.ndarray
) -> None:
    """Write what they say of a model-free drafter into rank and wrong. Of a tree they say whether
    any child of the text was right, not which."""
    free, num_depths = record.outcome.free_tests[drafter], rank.shape[1]
    certain = count_leading(rank == 0)
    is_new = (free.tested > 0) & (free.position == certain) & (certain < num_depths)
    there = np.minimum(certain, num_depths - 1)
    rows = np.arange(len(certain))
    is_new &= (rank[rows, there] == UNKNOWN) & (wrong[rows, there] == 0)
    is_tree = record.view.drafters[drafter].parents is not None
    is_right = is_new & (free.matched > 0) & (not is_tree)
    is_wrong = is_new & (free.matched == 0)
    rank[rows[is_right], there[is_right]] = 0
    wrong[rows[is_wrong], there[is_wrong]] = ALL
