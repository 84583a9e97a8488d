"""The likeliest tree of a head that proposes the tokens of each depth on their own, as Medusa heads
do.

Such a head says how likely a token is so many places after the text, whatever stands between. The
chance of a path is taken as the product of its tokens', and the best tree of n nodes are the n
largest products, popped one by one: of each node that was taken the child of next rank and its own
top-1 child may be next.
"""

import heapq

import numpy as np

from smartspec.control.records import MAX_TREE_NODES
from smartspec.core.batch import Draft, chain
from smartspec.engine.drafting.trees.proposals import Proposals


def product_trees(proposals: Proposals, num_depths: list[int], num_nodes: list[int]) -> list[Draft]:
    """The best num_nodes[i] nodes of each row, fewer where there are no more. proposals: of each
    row by depth, num_depths[i] of them, as many tokens as a node has children. Of one each all are
    chains. Raises ValueError for a tree of more nodes than a mask holds."""
    token_ids, chances = proposals.lists
    if len(token_ids[0]) > 1 and max(num_nodes) > MAX_TREE_NODES:
        raise ValueError(
            f"a draft tree of {max(num_nodes)} nodes: the limit is {MAX_TREE_NODES}, use fewer "
            "nodes"
        )
    made, first = [], 0
    for depths, nodes in zip(num_depths, num_nodes, strict=True):
        of_row = slice(first, first + depths)
        made.append(product_tree(token_ids[of_row], chances[of_row], nodes))
        first += depths
    return made


def product_tree(token_ids: list[list[int]], chances: list[list[float]], num_nodes: int) -> Draft:
    """The best num_nodes nodes, likeliest first, with their chances as confidence. token_ids,
    chances: by depth, the likeliest first."""
    taken: list[tuple[int, int, float]] = []  # parent, token, chance
    # Of equal paths the first that could be taken comes first.
    open_nodes, number = [(-chances[0][0], 0, -1, 0, 0, 1.0)], 1
    while open_nodes and len(taken) < num_nodes:
        worth, _, parent, depth, rank, of_parent = heapq.heappop(open_nodes)
        taken.append((parent, token_ids[depth][rank], chances[depth][rank]))
        if rank + 1 < len(chances[depth]):
            next_rank = -of_parent * chances[depth][rank + 1]
            heapq.heappush(open_nodes, (next_rank, number, parent, depth, rank + 1, of_parent))
        if depth + 1 < len(chances):
            child = worth * chances[depth + 1][0]
            heapq.heappush(open_nodes, (child, number + 1, len(taken) - 1, depth + 1, 0, -worth))
        number += 2
    parents, tokens, confidence = (np.array(column) for column in zip(*taken, strict=True))
    if (parents == np.arange(len(parents)) - 1).all():
        return chain(tokens.astype(np.int32), confidence=confidence)
    return Draft(tokens.astype(np.int32), parents.astype(np.int32), confidence=confidence)
