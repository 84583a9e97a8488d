"""A tree's tokens compute what each path computes alone, in our kernel and in torch's, and its path
becomes text."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from random_trees import random_parents, tree_of
from tiny_models import (
    KERNEL_AND_TORCH,
    VOCABULARY,
    assert_near,
    tiny_llama,
    tiny_mistral,
    tiny_runner,
)

from smartspec.core.batch import Draft
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.attention.tree_mask import MAX_TREE_TOKENS, TreeMask, tree_mask
from smartspec.engine.models.model_runner import ModelRunner


def some_tree(seed: int, num_nodes: int) -> Draft:
    random = np.random.default_rng(seed)
    return Draft(
        random.integers(0, VOCABULARY, num_nodes, dtype=np.int32), random_parents(random, num_nodes)
    )


def text_of(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(0, VOCABULARY, length, dtype=np.int32)


def logits_of_path(runner: ModelRunner, text: np.ndarray, path: Sequence[int]) -> torch.Tensor:
    """Of the last token, computed alone in another slot."""
    whole = np.concatenate([text, np.array(path, dtype=np.int32)])
    return runner.forward([Segment(2, 0, whole, 1)])[0]


def tree_segment(text: np.ndarray, draft: Draft, slot: int = 0) -> Segment:
    """The text's last token and the tree after it."""
    token_ids = np.concatenate([text[-1:], draft.token_ids])
    parents = np.concatenate([[-1], draft.parents + 1])
    return Segment(
        slot, len(text) - 1, token_ids, len(token_ids), tree_mask(parents, len(text) - 1)
    )


@pytest.mark.parametrize("tile_tokens", [0, 3, 64])
@pytest.mark.parametrize("model", [tiny_llama, tiny_mistral])
def test_every_node_has_the_logits_of_its_path(model, tile_tokens):
    """Beside a chain and another tree in one pass; mistral's window of 7 is shorter than the
    text."""
    runner = tiny_runner(model(), tile_tokens)
    texts, trees = [text_of(40), text_of(9)], [some_tree(0, 20), some_tree(1, 7)]
    runner.forward([Segment(slot, 0, text[:-1], 0) for slot, text in enumerate(texts)])
    logits = runner.forward(
        [
            tree_segment(text, tree, slot)
            for slot, (text, tree) in enumerate(zip(texts, trees, strict=True))
        ]
        + [Segment(2, 0, text_of(5), 1)]
    )
    rows = iter(logits)
    for text, tree in zip(texts, trees, strict=True):
        for path in tree.paths:
            assert_near(next(rows), logits_of_path(runner, text, path))


@KERNEL_AND_TORCH
def test_a_tree_fed_level_by_level_is_the_tree_fed_at_once(tile_tokens):
    runner = tiny_runner(tiny_mistral(), tile_tokens)
    text, tree = text_of(20), some_tree(2, 15)
    runner.forward([Segment(0, 0, text[:-1], 0), Segment(1, 0, text[:-1], 0)])
    wanted = runner.forward([tree_segment(text, tree)])
    token_ids, parents = (
        np.concatenate([text[-1:], tree.token_ids]),
        np.concatenate([[-1], tree.parents + 1]),
    )
    ancestors, parts = np.empty(0, dtype=np.uint64), []
    for first, end in ((0, 1), (1, 6), (6, 16)):
        mask = tree_mask(parents[first:end], len(text) - 1, first, ancestors)
        ancestors = np.concatenate([ancestors, mask.ancestors])
        parts.append(
            runner.forward(
                [Segment(1, len(text) - 1 + first, token_ids[first:end], end - first, mask)]
            )
        )
    assert_near(torch.cat(parts), wanted)


@KERNEL_AND_TORCH
def test_the_accepted_path_becomes_text_in_every_layer(tile_tokens):
    runner = tiny_runner(tiny_llama(), tile_tokens)
    text = text_of(12)
    tree = tree_of([4, 5, 6, 7, 8], [-1, -1, 1, 0, 2])
    runner.forward([Segment(0, 0, text[:-1], 0)])
    runner.forward([tree_segment(text, tree)])
    runner.keep_path(0, len(text), (1, 2, 4))
    following = np.array([9], dtype=np.int32)
    logits = runner.forward([Segment(0, len(text) + 3, following, 1)])[0]
    wanted = logits_of_path(runner, text, [5, 6, 8, 9])
    assert_near(logits, wanted)


def test_a_mask_says_depth_and_path():
    mask = tree_mask(np.array([-1, 0, 0, 1, 3, 2]), base=30)
    assert mask.positions.tolist() == [30, 31, 31, 32, 33, 32]
    assert [np.flatnonzero(row).tolist() for row in mask.visible(36, None)] == [
        *([0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 3, 4], [0, 2, 5])
    ]
    assert [np.flatnonzero(row).tolist() for row in mask.visible(36, 2)] == [
        [0],
        [0, 1],
        [0, 2],
        [1, 3],
        [3, 4],
        [2, 5],
    ]


def test_trees_that_are_too_large_or_out_of_order_are_refused():
    assert isinstance(tree_mask(np.arange(-1, MAX_TREE_TOKENS - 1), 5), TreeMask)
    with pytest.raises(ValueError, match="a draft tree of 64 nodes: the limit is 63"):
        tree_mask(np.arange(-1, MAX_TREE_TOKENS), 5)
    with pytest.raises(
        ValueError, match="token 1 of a draft tree follows token 2: parents stand before children"
    ):
        tree_mask(np.array([-1, 2, 0]), 5)
    with pytest.raises(ValueError, match="follows token -2"):
        tree_mask(np.array([-1, -2]), 5)
