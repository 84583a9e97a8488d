"""The tokens that a token of a draft tree sees: one description for our kernel, torch's masks, and
position ids.

Tokens of a tree lie in the KV in node order, after the text, while their positions go by depth. A
token sees the whole text and, of the tree, its ancestors and itself: a set of at most 64 places,
one machine word. That word says all there is to know: its number of bits is the token's depth, and
what a sliding window leaves of a path are the word's highest bits, because parents stand before
their children.
"""

from dataclasses import dataclass

import numpy as np

from smartspec.control.records import MAX_TREE_NODES

MAX_TREE_TOKENS = MAX_TREE_NODES + 1  # bits of a word


@dataclass(frozen=True)
class TreeMask:
    """The places that new tokens of one request see from place base on; all places before are seen
    by all."""

    # the first place in the KV that not every token sees; position and place are the same up to
    # there
    base: int
    # uint64 [n], bit b of which says whether a token sees place base + b; its own bit is set
    ancestors: np.ndarray

    @property
    def positions(self) -> np.ndarray:
        """int64 [n]: base plus depth."""
        return self.base + np.bitwise_count(self.ancestors).astype(np.int64) - 1

    def visible(self, end: int, window: int | None) -> np.ndarray:
        """The places base..end - 1 that each token sees if it sees only so many positions (None:
        all): bool [n, end - base]."""
        seen = self.ancestors if window is None else _newest(self.ancestors, window)
        return (seen[:, None] >> np.arange(end - self.base, dtype=np.uint64) & np.uint64(1)).astype(
            bool
        )


def tree_mask(
    parents: np.ndarray, base: int, first: int = 0, ancestors: np.ndarray | None = None
) -> TreeMask:
    """The mask of tokens number first.. of a tree, in KV places base + first...

    parents: int [n], number in the tree of the token each one follows (-1: the text); a parent has
    a lower number. ancestors: uint64 [first], of the tokens fed before, where a tree is fed level
    by level. Raises ValueError where parents do not stand before their children or there are more
    than MAX_TREE_TOKENS tokens.
    """
    num_tokens = first + len(parents)
    if num_tokens > MAX_TREE_TOKENS:
        raise ValueError(f"a draft tree of {num_tokens - 1} nodes: the limit is {MAX_TREE_NODES}")
    seen = np.zeros(num_tokens, dtype=np.uint64)
    seen[:first] = 0 if ancestors is None else ancestors
    for number, parent in enumerate(parents.tolist(), start=first):
        if not -1 <= parent < number:
            raise ValueError(
                f"token {number} of a draft tree follows token {parent}: parents stand before "
                "children"
            )
        seen[number] = np.uint64(1 << number) | (seen[parent] if parent >= 0 else np.uint64(0))
    return TreeMask(base, seen[first:])


def visible_of_slot(tree: TreeMask, context: int, window: int | None) -> np.ndarray:
    """The first context places of their slot that tokens of a tree see: bool [n, context]."""
    oldest = 0 if window is None else tree.positions + 1 - window
    text = np.arange(tree.base) >= np.reshape(oldest, (-1, 1))
    end = min(context, tree.base + MAX_TREE_TOKENS)
    nothing = np.zeros((len(tree.ancestors), context - end), dtype=bool)
    text = np.broadcast_to(text, (len(tree.ancestors), tree.base))
    return np.concatenate([text, tree.visible(end, window), nothing], axis=1)


def _newest(ancestors: np.ndarray, num_tokens: int) -> np.ndarray:
    """The num_tokens highest bits of each word."""
    kept = ancestors.copy()
    while (is_full := np.bitwise_count(kept) > num_tokens).any():
        kept = np.where(is_full, kept & (kept - np.uint64(1)), kept)
    return kept
