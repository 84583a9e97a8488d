"""Best-first expansion, on a tiny model: the likeliest tree there is, from passes over its levels
alone."""

import itertools

import numpy as np
import pytest
from tiny_models import VOCABULARY, tiny_runner

from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.trees.expansion import TreeExpansion, best_children
from smartspec.engine.models.model_runner import ModelRunner

WIDTH, DEPTH = 3, 3
TEXT = np.random.default_rng(0).integers(0, VOCABULARY, 20, dtype=np.int32)


def grow(runner: ModelRunner, width: int, depth: int, num_nodes: int):
    growing, place = TreeExpansion(width, num_nodes), len(TEXT)
    growing.add([-1], *best_children(runner.forward([Segment(0, 0, TEXT, 1)]), width))
    for _ in range(depth - 1):
        if not (fed := growing.frontier()):
            break
        token_ids, mask = growing.token_ids(fed), growing.feed(fed, place)
        growing.add(
            fed,
            *best_children(runner.forward([Segment(0, place, token_ids, len(fed), mask)]), width),
        )
        place += len(fed)
    return growing.draft()


def test_the_draft_is_the_likeliest_tree():
    runner = tiny_runner()
    draft = grow(runner, WIDTH, DEPTH, num_nodes=10)
    next_probs = {}
    for depth in range(DEPTH):
        for path in itertools.product(range(WIDTH), repeat=depth):
            tokens = []
            for number in path:
                tokens.append(int(next_probs[tuple(tokens)].topk(WIDTH).indices[number]))
            text = np.concatenate([TEXT, np.array(tokens, dtype=np.int32)])
            next_probs[tuple(tokens)] = runner.forward([Segment(1, 0, text, 1)])[0].softmax(-1)
    # All paths of the children that may be: of every level the WIDTH likeliest nodes have children.
    level, everything = {(): 1.0}, {}
    for _ in range(DEPTH):
        kept = sorted(level, key=lambda path: -level[path])[:WIDTH]
        level = {
            (*path, token): level[path] * chance
            for path in kept
            for chance, token in zip(
                *(top.tolist() for top in next_probs[path].topk(WIDTH)), strict=True
            )
        }
        everything |= level
    best = sorted(everything, key=lambda path: -everything[path])[:10]
    paths = draft.paths[1:]
    assert set(paths) == set(best)
    for confidence, path in zip(draft.confidence, paths, strict=True):
        chance = everything[path] / (everything[path[:-1]] if path[:-1] else 1.0)
        assert confidence == pytest.approx(chance, rel=1e-3)
    probabilities = [everything[path] for path in paths]
    assert (np.diff(probabilities) <= 0).all() and (draft.parents < np.arange(len(draft))).all()


def test_width_one_is_a_chain():
    runner = tiny_runner()
    draft = grow(runner, width=1, depth=4, num_nodes=4)
    text = TEXT.tolist()
    for token in draft.token_ids.tolist():
        logits = runner.forward([Segment(1, 0, np.array(text, dtype=np.int32), 1)])
        assert token == int(logits.argmax())
        text.append(token)
    assert draft.is_chain and len(draft) == 4


def test_a_tree_of_more_nodes_than_a_mask_holds_is_refused():
    with pytest.raises(ValueError, match="a draft tree of 64 nodes: the limit is 63"):
        TreeExpansion(2, 64)
    TreeExpansion(1, 64)  # a chain needs no mask


def even_chances(growing: TreeExpansion, nodes: list[int]) -> float:
    """Children that are all as likely."""
    width = growing.width
    return growing.add(nodes, [list(range(width))] * len(nodes), [[1 / width] * width] * len(nodes))


def test_no_more_is_fed_than_there_is_room_for():
    growing = TreeExpansion(4, 30, max_fed=6)
    assert even_chances(growing, [-1]) == pytest.approx(1.0)
    growing.feed(fed := growing.frontier(), 5)
    assert len(fed) == 4
    assert even_chances(growing, fed) == pytest.approx(1 / 4)  # of 16 paths, four are the beam
    assert len(growing.frontier()) == 2


def test_what_cannot_be_in_the_draft_is_not_fed():
    growing = TreeExpansion(2, 3)
    growing.add([-1], [[7, 8]], [[0.9, 0.1]])
    assert growing.frontier() == [0, 1]
    growing.feed([0, 1], 5)
    growing.add([0, 1], [[1, 2], [3, 4]], [[0.6, 0.4], [0.9, 0.1]])  # paths 0.54, 0.36, 0.09, 0.01
    # the least of the best three, 0.36, cannot become better by its children
    assert growing.frontier() == [2]
    draft = growing.draft()
    assert draft.token_ids.tolist() == [7, 1, 2] and draft.parents.tolist() == [-1, 0, 0]
