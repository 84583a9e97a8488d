"""Draft trees of a simulated head, and which of their nodes are right.

A head proposes children of a node likeliest first, so a child is known by its rank: the draft
tokens of a simulated tree are ranks, and the ground truth says for each depth which rank the target
goes on with, if any. The top-1 child is right where a chain's token would be (acceptance). A later
child is right in a share of the cases in which all children before it are wrong. Confidence follows
the same rule, from that of the chain's token. So the nodes of one depth differ by rank alone; a
real head is surer after some nodes than after others.

Trees grow as heads make them in the engine (engine.drafting.trees.expansion; EAGLE-2, arXiv
2406.16858): the likeliest nodes of a level are fed to the next pass, and the likeliest of all are
the draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smartspec.control import DrafterSpec, Plan
from smartspec.control.expected_tree import child_chances
from smartspec.control.records import MAX_TREE_NODES, StopRule
from smartspec.core.batch import NO_DRAFT, Draft, Verification
from smartspec.core.draft_columns import node_tests, num_compared
from smartspec.sim.world.acceptance import GroundTruthAcceptance, Places

NO_RANK = -1  # none of the children is right


def chances_of_ranks(share: float, width: int) -> np.ndarray:
    """The chance that the second, third, ... child is right where the first is wrong: float [width
    - 1]. share: of the cases in which all children before it are wrong, those in which a child is
    right."""
    return share * (1.0 - share) ** np.arange(width - 1)


def true_rank_chances(drafter: DrafterSpec, share: float) -> dict[int, np.ndarray]:
    """The true values for control.policy.Estimates, of a world with this drafter alone."""
    return {0: chances_of_ranks(share, MAX_TREE_NODES)} if drafter.makes_trees else {}


def right_ranks(
    uniform: np.ndarray, top_chance: np.ndarray, rank_chances: np.ndarray
) -> np.ndarray:
    """The child that is right after a right node of each depth, NO_RANK where none of so many: int
    [R, K]. uniform: float [R, K] in [0, 1); where it is below top_chance (float [R, K]), the top-1
    child is right."""
    # uniform too, where the first is wrong
    left = (uniform - top_chance) / np.maximum(1.0 - top_chance, 1e-12)
    ranks = 1 + np.searchsorted(np.cumsum(rank_chances), left, side="right")
    return np.where(left < 0, 0, np.where(ranks > len(rank_chances), NO_RANK, ranks))


def right_path(draft: Draft, ranks: np.ndarray) -> tuple[int, ...]:
    """The nodes of a draft of ranks that are accepted, root first. ranks: int [depths], of the
    right children."""
    nodes = {
        edge: node
        for node, edge in enumerate(
            zip(draft.parents.tolist(), draft.token_ids.tolist(), strict=True)
        )
    }
    path: list[int] = []
    for rank in ranks.tolist():
        node = nodes.get((path[-1] if path else -1, rank))
        if node is None:
            break
        path.append(node)
    return tuple(path)


def tree_tests(
    drafts: Sequence[Draft],
    paths: Sequence[tuple[int, ...]],
    num_kept: np.ndarray,
    num_nodes: int,
) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens of verified drafts were compared, int [R], and the result of each node, see
    node_tests. paths: accepted nodes, root first."""
    answers = [Verification((), len(path), accepted_nodes=path) for path in paths]
    tested = np.array(list(map(num_compared, drafts, answers)), dtype=np.int64)
    return tested, node_tests(drafts, answers, num_kept, num_nodes)


def tree_survival(draft: Draft, chances: np.ndarray) -> np.ndarray:
    """The chance that each node of a draft of ranks is accepted: float [n]. chances: float [depths,
    width], of the children after a right node."""
    edges = chances[draft.depths - 1, draft.token_ids].tolist()
    survival = [1.0] * (len(draft) + 1)  # the last: of the text, parent -1
    for node, parent in enumerate(draft.parents.tolist()):
        survival[node] = survival[parent] * edges[node]
    return np.array(survival[:-1])


@dataclass(frozen=True)
class SimulatedTrees:
    """The trees of a step's plan for a world's requests."""

    drafts: tuple[Draft, ...]  # see grow_trees
    num_fed: np.ndarray
    right: np.ndarray  # int [R, K], see right_ranks
    chances: np.ndarray  # float [R, K, width], the true ones of the children after a right node

    @staticmethod
    def of(
        acceptance: GroundTruthAcceptance,
        later_child_share: float,
        at: Places,
        plan: Plan,
        lengths: np.ndarray,
    ) -> "SimulatedTrees":
        """lengths: int [R], nodes of each draft."""
        rank_chances = chances_of_ranks(later_child_share, plan.width)
        conditional = acceptance.conditional(at)
        confidence, entropy = acceptance.confidence(at, conditional)
        believed = child_chances(confidence, rank_chances)
        if "chances" in plan.extras:
            believed = np.broadcast_to(
                plan.extras["chances"][: believed.shape[1], : plan.width], believed.shape
            )
        drafts, num_fed = grow_trees(believed, lengths, plan.passes, plan.stop, entropy)
        right = right_ranks(acceptance.uniform(at), conditional, rank_chances)
        return SimulatedTrees(drafts, num_fed, right, child_chances(conditional, rank_chances))


def grow_trees(
    chances: np.ndarray,
    num_nodes: np.ndarray,
    num_passes: np.ndarray,
    stop: StopRule | None = None,
    entropy: np.ndarray | None = None,
) -> tuple[tuple[Draft, ...], np.ndarray]:
    """The best num_nodes[i] nodes that num_passes[i] passes propose (int [R] each), fewer passes
    where stop says so: drafts of ranks, likeliest nodes first, with their chances as confidence;
    and int [R, passes], nodes of each row that a pass is fed, the text's newest token in the first.

    chances: float [R, depths, width], what the head believes of the children of a node; entropy:
    float [R, depths], of the head's distribution, for stop."""
    num_rows, max_depth, width = chances.shape
    # Of all nodes made so far, one column each: worth is the chance to be reached and right, 0
    # where there is none.
    worth, chance = np.zeros((2, num_rows, 0))
    parents, ranks = np.zeros((2, num_rows, 0), dtype=np.int64)
    fed, fed_worth = np.full((num_rows, 1), -1), np.ones((num_rows, 1))
    beam, is_active = np.ones(num_rows), (num_nodes > 0) & (num_passes > 0)
    num_fed = np.zeros((num_rows, max_depth), dtype=np.int64)
    for depth in range(max_depth):
        fed_worth = np.where(is_active[:, None], fed_worth, 0.0)
        num_fed[:, depth] = (fed_worth > 0).sum(axis=1)
        if not num_fed[:, depth].any():
            break
        made = (fed_worth[:, :, None] * chances[:, depth, None]).reshape(num_rows, -1)
        first, worth = worth.shape[1], np.concatenate([worth, made], axis=1)
        chance = np.concatenate([chance, np.tile(chances[:, depth], fed.shape[1])], axis=1)
        parents = np.concatenate([parents, np.repeat(fed, width, axis=1)], axis=1)
        ranks = np.concatenate([ranks, np.tile(np.arange(width), (num_rows, fed.shape[1]))], axis=1)
        best = (-made).argsort(axis=1, kind="stable")[:, :width]
        fed, fed_worth = first + best, np.take_along_axis(made, best, axis=1)
        is_active &= num_passes > depth + 1
        if stop is not None and entropy is not None:
            fed_rows = np.flatnonzero(num_fed[:, depth])
            now = fed_worth.sum(axis=1)
            confidence = np.divide(now, beam, out=np.zeros_like(now), where=beam > 0)
            stops = np.asarray(
                stop(depth, fed_rows, confidence[fed_rows], entropy[fed_rows, depth]), dtype=bool
            )
            is_active[fed_rows[stops]], beam = False, now
        fed_worth = np.where(fed_worth > _least(worth, num_nodes)[:, None], fed_worth, 0.0)
    rows = zip(worth, chance, parents, ranks, num_nodes.tolist(), strict=True)
    return tuple([_draft(*row) for row in rows]), num_fed


def _least(worth: np.ndarray, num_nodes: np.ndarray) -> np.ndarray:
    """The worth of the last of the likeliest num_nodes[i] nodes, 0 where there are not as many:
    float [R]."""
    place = worth.shape[1] - np.minimum(num_nodes, worth.shape[1])
    least = np.take_along_axis(
        np.sort(worth, axis=1), np.minimum(place, worth.shape[1] - 1)[:, None], axis=1
    )[:, 0]
    return np.where(num_nodes > worth.shape[1], 0.0, least)


def _draft(
    worth: np.ndarray, chance: np.ndarray, parents: np.ndarray, ranks: np.ndarray, num_nodes: int
) -> Draft:
    kept = (-worth).argsort(kind="stable")[: min(num_nodes, int((worth > 0).sum()))]
    if not len(kept):
        return NO_DRAFT
    places = np.full(len(worth) + 1, -1, dtype=np.int32)  # the last: of the text, parent -1
    places[kept] = np.arange(len(kept))
    return Draft(ranks[kept].astype(np.int32), places[parents[kept]], confidence=chance[kept])
