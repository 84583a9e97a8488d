"""Random draft trees for tests: shapes that change with every call, some of whose nodes are
right."""

import numpy as np

from smartspec.core.batch import Draft


def tree_of(token_ids: list[int], parents: list[int], **more) -> Draft:
    return Draft(np.array(token_ids, dtype=np.int32), np.array(parents, dtype=np.int32), **more)


def random_parents(random: np.random.Generator, num_nodes: int) -> np.ndarray:
    """Any tree in node order: int32 [n]."""
    return np.array([random.integers(-1, node) for node in range(num_nodes)], dtype=np.int32)


def random_tree(
    random: np.random.Generator, num_nodes: int, ground_truth: list[int], vocabulary: int
) -> Draft:
    """A tree in which about every other child is what plain decoding emits there (ground truth), if
    its parent is."""
    parents = random_parents(random, num_nodes)
    token_ids = random.integers(0, vocabulary, num_nodes, dtype=np.int32)
    right_depth = {-1: 0}  # of nodes whose whole path is right
    for node, parent in enumerate(parents.tolist()):
        depth = right_depth.get(parent)
        if depth is not None and depth < len(ground_truth) and random.random() < 0.6:
            token_ids[node] = ground_truth[depth]
            right_depth[node] = depth + 1
    return Draft(token_ids, parents)
