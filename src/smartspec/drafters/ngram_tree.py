"""N-gram trees: several continuations that the text itself and the recycling table propose, merged into one tree.

The tree grows best first. The children of a node come from two places. One is the request's own text: what followed the
same last tokens there, as in prompt lookup, from the most recent of the longest matches. The other is what the target
wrote after these tokens in any request, as in recycling, several tokens a context. The next node is the likeliest one
that is not yet in the tree, by the product of the probabilities on its path. So every prefix of the nodes is the best
tree of its size. That is the expansion of EAGLE-2 (arXiv 2406.16858) with counts in place of a head's probabilities.
SuffixDecoding (arXiv 2411.04975) expands best first over counts, too, in suffix trees of earlier texts; here there is
no suffix tree.

The probability of a child is counted: how often the target emitted children that were found in the same way, verified
or not. The way is the length of the match, context and place in the table, and child rank.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from smartspec.control.records import MAX_TREE_NODES, DrafterSpec, FreeTests
from smartspec.core.batch import NO_DRAFT, Batch, Draft, Verification
from smartspec.drafters.model_free import FORCED
from smartspec.drafters.recycling import MAX_CONTEXT, NUM_CANDIDATES, RecyclingDrafter, append, pack

MAX_MATCH = 8
MAX_MATCHES = 8  # earlier places of the text that are followed, of those that match best
MAX_SCANNED = 64  # most recent places of the last token that are looked at
MAX_RANK = 2
NODES_PER_STEP = 64  # over all rows: with many rows there is no room for large trees, nor time to make them
LEAST_PROBABILITY = 0.01  # of a path; no load is so light that less pays
PRIOR_WEIGHT = 4.0  # of the priors, in observations
MEMORY = 0.999  # per observation of a kind


# Before anything is counted: by length of the match in the text, by length of the table's context and place in it, and
# the share that is left of both for later ranks.
BY_MATCH = (0.0, 0.3, 0.45, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)
BY_CONTEXT = (0.0, 0.15, 0.3, 0.45)
BY_PLACE = (1.0, 0.35, 0.2)
BY_RANK = (1.0, 0.6, 0.4)

_NUM_TABLE_KINDS = 1 + MAX_CONTEXT * NUM_CANDIDATES
_SHAPE = (MAX_MATCH + 1, _NUM_TABLE_KINDS, MAX_RANK + 1)


@dataclass(frozen=True)
class CountedDraft(Draft):
    """A draft that remembers which kind of child each node is: [n]."""

    kinds: Sequence[int] = ()


class _Child(NamedTuple):
    """A node that may come next; the least is the likeliest. rank: among the children of its parent. places: of the
    text that go on with it, and the length of the match after each."""

    cost: float  # minus the probability of its path
    rank: int
    chance: float
    parent: int
    token: int
    kind: int
    places: list[tuple[int, int]]
    context: int
    depth: int


class NgramTreeDrafter(RecyclingDrafter):
    """Drafts trees of up to max_draft_tokens nodes; remembers what RecyclingDrafter does, and how well it did."""

    spec = DrafterSpec("ngram-tree", match_lengths=(0, 2, 3, 4, 6, 8, FORCED))

    def __init__(self, **options):
        super().__init__(**options)
        if self.max_draft_tokens > MAX_TREE_NODES:
            raise ValueError(f"max_draft_tokens is {self.max_draft_tokens}: a draft tree has at most {MAX_TREE_NODES}")
        self._hits = (PRIOR_WEIGHT * _priors()).ravel().tolist()
        self._tries = [PRIOR_WEIGHT] * len(self._hits)
        self._most_nodes = self.max_draft_tokens

    def of_salt(self, cache_salt: str) -> "NgramTreeDrafter":
        drafter = super().of_salt(cache_salt)
        assert isinstance(drafter, NgramTreeDrafter)
        drafter._most_nodes = self._most_nodes
        return drafter

    def begin_step(self, batch: Batch) -> None:
        self._most_nodes = max(1, min(self.max_draft_tokens, NODES_PER_STEP // max(len(batch.decoding), 1)))
        super().begin_step(batch)

    def propose(self, token_ids: np.ndarray) -> Draft:
        """The best tree after a text, int32 [L]."""
        text, places = token_ids.tolist(), _matches(token_ids)
        nodes: list[_Child] = []
        frontier = self._children(text, -1, 1.0, pack(token_ids), places, 0)
        heapq.heapify(frontier)
        while frontier and len(nodes) < self._most_nodes:
            node = heapq.heappop(frontier)
            nodes.append(node)
            for child in self._children(text, len(nodes) - 1, -node.cost, node.context, node.places, node.depth):
                heapq.heappush(frontier, child)
        if not nodes:
            return NO_DRAFT
        return CountedDraft(
            np.array([node.token for node in nodes], dtype=np.int32),
            np.array([node.parent for node in nodes], dtype=np.int32),
            match_length=places[0][1] if places else 0,
            confidence=np.array([node.chance for node in nodes]),
            kinds=[node.kind for node in nodes],
        )

    def observe(
        self,
        batch: Batch,
        verified: np.ndarray,
        decoding: Sequence[Verification],
        prefill: Sequence[Verification | None],
    ) -> FreeTests:
        for request, draft, verification in zip(batch.decoding, self._drafts, decoding, strict=True):
            if isinstance(draft, CountedDraft):
                self.of_salt(request.origin.cache_salt).count(draft, verification.emitted_token_ids)
        return super().observe(batch, verified, decoding, prefill)

    def count(self, draft: CountedDraft, emitted_token_ids: tuple[int, ...]) -> None:
        """Learn from what the target emitted: of every node on its way, which child was right."""
        nodes = list(zip(draft.parents.tolist(), draft.token_ids.tolist(), draft.kinds, strict=True))
        at = -1
        for emitted in emitted_token_ids:
            following = None
            for node, (parent, token, kind) in enumerate(nodes):
                if parent == at:
                    self._tries[kind] = self._tries[kind] * MEMORY + 1.0
                    self._hits[kind] = self._hits[kind] * MEMORY + (token == emitted)
                    if token == emitted:
                        following = node
            if following is None:
                return
            at = following

    def _children(
        self, text: list[int], node: int, probability: float, context: int, places: list[tuple[int, int]], depth: int
    ) -> list[_Child]:
        """Of a node at that depth whose path has that probability: its likeliest child first."""
        followed: dict[int, list[tuple[int, int]]] = {}
        for place, match in places:
            # A match that runs into the end of the text goes on with what it has already said: a period.
            token = text[place + depth % (len(text) - place)]
            followed.setdefault(token, []).append((place, match))
        candidates, num_known = self._candidates(context)
        in_table = {token: place for place, token in enumerate(candidates) if token >= 0}
        found = []
        for token in {**followed, **in_table}:
            match = min(followed[token][0][1] + depth, MAX_MATCH) if token in followed else 0
            of_table = 1 + (num_known - 1) * NUM_CANDIDATES + in_table[token] if token in in_table else 0
            kind = (match * _NUM_TABLE_KINDS + of_table) * (MAX_RANK + 1)
            found.append((self._hits[kind] / self._tries[kind], token, kind))
        found.sort(key=lambda child: -child[0])
        children, chance, left = [], 1.0, 1.0
        for rank, (_, token, first_kind) in enumerate(found):
            kind = first_kind + min(rank, MAX_RANK)
            # No likelier than a child of an earlier rank, and of all of them only one can be right.
            chance = min(self._hits[kind] / self._tries[kind], chance, left)
            left -= chance
            if (path := probability * chance) < LEAST_PROBABILITY:
                break
            follow = followed.get(token, [])
            children.append(_Child(-path, rank, chance, node, token, kind, follow, append(context, token), depth + 1))
        return children


def _priors() -> np.ndarray:
    """Probability of each kind of child before anything is counted: float [_SHAPE]."""
    priors = np.zeros(_SHAPE)
    for match, of_table, rank in np.ndindex(*_SHAPE):
        context, place = divmod(of_table + NUM_CANDIDATES - 1, NUM_CANDIDATES)
        by_table = BY_CONTEXT[context] * BY_PLACE[place] if of_table else 0.0
        priors[match, of_table, rank] = (1.0 - (1.0 - BY_MATCH[match]) * (1.0 - by_table)) * BY_RANK[rank]
    return priors


def _matches(token_ids: np.ndarray) -> list[tuple[int, int]]:
    """Places after earlier matches of the text's end and their lengths, the longest and most recent first."""
    ends = np.flatnonzero(token_ids[:-1] == token_ids[-1])[-MAX_SCANNED:]
    if not len(ends):
        return []
    width = min(MAX_MATCH, len(token_ids) - 1)
    back = np.arange(width)
    places = ends[:, None] - back
    is_equal = (token_ids[np.maximum(places, 0)] == token_ids[len(token_ids) - 1 - back]) & (places >= 0)
    lengths = np.logical_and.accumulate(is_equal, axis=1).sum(axis=1)
    order = np.lexsort((-ends, -lengths))[:MAX_MATCHES]
    return list(zip((ends[order] + 1).tolist(), lengths[order].tolist(), strict=True))
