"""N-gram trees: continuations by the text itself, finished answers, the recycling table and a
datastore, in one tree.

The tree grows best first. The children of a node come from three sources. One is text: what
followed the same last tokens in the request's own text, as in prompt lookup, and in finished
answers; of each the longest matches. The second is what the target wrote after these tokens in any
request, as in recycling, several tokens a context. The third is what followed them in the texts of
a datastore. The next node is the likeliest one that is not yet in the tree, by the product of the
probabilities on its path. So every prefix of the nodes is the best tree of its size. That is the
expansion of EAGLE-2 (arXiv 2406.16858) with counts in place of a head's probabilities.
SuffixDecoding (arXiv 2411.04975) and SSSD (arXiv 2411.05894) expand best first over counts, too.

The probability of a child is counted: how often the target emitted children that were found in the
same way, verified or not. The way is what each source says of the child (a kind, 0 where it does
not have it), and child rank. In text that is the length of the match, in the table the context and
the place, in the datastore the context and the share.

    smartspec serve --drafter lab.drafters.ngram_tree:NgramTree
"""

import heapq
import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np

from smartspec.control.records import MAX_TREE_NODES, DrafterSpec, FreeTests
from smartspec.core.batch import NO_DRAFT, Batch, Draft, Verification
from smartspec.drafters.answer_memory import AnswerMemory
from smartspec.drafters.datastore import Datastore
from smartspec.drafters.finished_answers import Followed
from smartspec.drafters.model_free import FORCED
from smartspec.drafters.recycling import (
    LONGEST_FIRST,
    MASKS,
    MAX_CONTEXT,
    RecyclingDrafter,
    append,
    pack,
)

NUM_CANDIDATES = 3  # last different next tokens of a context that are remembered
_NONE = array("i", [-1] * NUM_CANDIDATES)
MAX_MATCH = 8
MAX_MATCHES = 8  # earlier places of the text that are followed, of those that match best
MAX_SCANNED = 64  # most recent places of the last token that are looked at
MAX_RANK = 2
# over all rows: with many rows there is no room for large trees, nor time to make them
NODES_PER_STEP = 64
LEAST_PROBABILITY = 0.01  # of a path; no load is so light that less pays
PRIOR_WEIGHT = 4.0  # of the priors, in observations
MEMORY = 0.999  # per observation of a kind


# Before anything is counted: by length of the match in text, by length of the table's context and
# place in it, by share in the datastore, and what is left of all for later ranks.
BY_MATCH = (0.0, 0.3, 0.45, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)
BY_CONTEXT = (0.0, 0.15, 0.3, 0.45)
BY_PLACE = (1.0, 0.35, 0.2)
BY_SHARE = (0.05, 0.15, 0.3, 0.5, 0.75)
SHARES = (0.1, 0.2, 0.4, 0.65)  # between those
BY_RANK = (1.0, 0.6, 0.4)

# A kind is one number, to which each source adds its part.
_SHAPE = (
    MAX_MATCH + 1,
    1 + MAX_CONTEXT * NUM_CANDIDATES,
    1 + MAX_CONTEXT * len(BY_SHARE),
    MAX_RANK + 1,
)
_OF_MATCH, _OF_TABLE, _OF_STORE = (math.prod(_SHAPE[axis:]) for axis in (1, 2, 3))


@dataclass(frozen=True)
class CountedDraft(Draft):
    """A draft that remembers which kind of child each node is: [n]."""

    kinds: Sequence[int] = ()


class _Child(NamedTuple):
    """A node that may come next; the least is the likeliest."""

    cost: float  # minus the probability of its path
    rank: int  # among the children of its parent
    chance: float
    parent: int
    token: int
    kind: int
    follow: list[Followed]  # texts that go on with it
    context: int
    depth: int


class NgramTree(RecyclingDrafter):
    """Drafts trees of up to max_draft_tokens nodes; remembers several next tokens of what contexts
    RecyclingDrafter does, and how well it did."""

    spec = DrafterSpec("ngram-tree", match_lengths=(0, 2, 3, 4, 6, 8, FORCED))
    reads_texts = True

    def __init__(
        self, *, datastore: Datastore | None = None, memory: AnswerMemory | None = None, **options
    ):
        super().__init__(**options)
        # of each context the newest first
        self._next_tokens *= NUM_CANDIDATES
        self._datastore = datastore
        self._memory = AnswerMemory() if memory is None else memory
        self._answers = self._memory.of_salt("")
        if self.max_draft_tokens > MAX_TREE_NODES:
            raise ValueError(
                f"max_draft_tokens is {self.max_draft_tokens}: a draft tree has at most "
                f"{MAX_TREE_NODES}"
            )
        self._hits = (PRIOR_WEIGHT * _priors()).ravel().tolist()
        self._tries = [PRIOR_WEIGHT] * len(self._hits)
        self._most_nodes = self.max_draft_tokens

    def of_salt(self, cache_salt: str) -> "NgramTree":
        return self._prepared(super().of_salt(cache_salt), cache_salt)

    def reader_of_salt(self, cache_salt: str) -> "NgramTree":
        return self._prepared(super().reader_of_salt(cache_salt), cache_salt)

    def _prepared(self, drafter: RecyclingDrafter, cache_salt: str) -> "NgramTree":
        """The drafter, ready to propose to a request of this salt."""
        assert isinstance(drafter, NgramTree)
        drafter._most_nodes, drafter._answers = self._most_nodes, self._memory.of_salt(cache_salt)
        return drafter

    def _options(self) -> dict:
        return super()._options() | {"datastore": self._datastore, "memory": self._memory}

    def begin_step(self, batch: Batch) -> None:
        self._most_nodes = max(
            1, min(self.max_draft_tokens, NODES_PER_STEP // max(len(batch.decoding), 1))
        )
        self._memory.follow(batch)
        super().begin_step(batch)

    def learn(self, token_ids: np.ndarray, emitted_token_ids: tuple[int, ...]) -> None:
        context, contexts, next_tokens = pack(token_ids), self._contexts, self._next_tokens
        for token in emitted_token_ids:
            for mask in MASKS[1:]:
                key = context & mask
                slot = key % len(contexts)
                first = NUM_CANDIDATES * slot
                if contexts[slot] != key:
                    contexts[slot] = key
                    next_tokens[first : first + NUM_CANDIDATES] = _NONE
                moved = token
                # to the front, those before it one place back
                for place in range(first, first + NUM_CANDIDATES):
                    next_tokens[place], moved = moved, next_tokens[place]
                    if moved == token:
                        break
            context = append(context, token)

    def propose(self, token_ids: np.ndarray) -> Draft:
        """The best tree after a text, int32 [L]."""
        nodes: list[_Child] = []
        context = pack(token_ids)
        follow = [
            *_matches(token_ids, self._most_nodes),
            *self._answers.matches(token_ids, context, self._most_nodes),
        ]
        follow.sort(key=attrgetter("match"), reverse=True)
        frontier: list[_Child] = []
        # probabilities of the best paths so far, the least first
        best = [LEAST_PROBABILITY] * self._most_nodes
        self._grow(frontier, best, _Child(-1.0, 0, 1.0, -1, -1, 0, follow, context, 0), -1)
        while frontier and len(nodes) < self._most_nodes:
            nodes.append(heapq.heappop(frontier))
            self._grow(frontier, best, nodes[-1], len(nodes) - 1)
        if not nodes:
            return NO_DRAFT
        return CountedDraft(
            np.array([node.token for node in nodes], dtype=np.int32),
            np.array([node.parent for node in nodes], dtype=np.int32),
            match_length=follow[0].match if follow else 0,
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
        for request, draft, verification in zip(
            batch.decoding, self._drafts, decoding, strict=True
        ):
            if (
                isinstance(draft, CountedDraft)
                and (known := self._known(request.origin.cache_salt)) is not None
            ):
                assert isinstance(known, NgramTree)
                known.count(draft, verification.emitted_token_ids)
        return super().observe(batch, verified, decoding, prefill)

    def count(self, draft: CountedDraft, emitted_token_ids: tuple[int, ...]) -> None:
        """Learn from what the target emitted: of every node on its way, which child was right."""
        nodes = list(
            zip(draft.parents.tolist(), draft.token_ids.tolist(), draft.kinds, strict=True)
        )
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

    def _grow(self, frontier: list[_Child], best: list[float], node: _Child, number: int) -> None:
        """Add the children of a node to those that may come next, as far as their paths are among
        the best."""
        if -node.cost <= best[0]:
            return
        followed: dict[int, list[Followed]] = {}
        for each in node.follow:
            if node.depth < len(each.tokens):
                followed.setdefault(each.tokens[node.depth], []).append(each)
        kinds: dict[int, int] = {}  # by token; each source adds its own part
        for token, matches in followed.items():
            kinds[token] = min(matches[0].match + node.depth, MAX_MATCH) * _OF_MATCH
        for token, kind in self._recycled(node.context):
            kinds[token] = kinds.get(token, 0) + kind * _OF_TABLE
        for token, kind in self._stored(node.context):
            kinds[token] = kinds.get(token, 0) + kind * _OF_STORE
        hits, tries = self._hits, self._tries
        found = [(hits[kind] / tries[kind], token, kind) for token, kind in kinds.items()]
        found.sort(key=itemgetter(0), reverse=True)
        chance, left = 1.0, 1.0
        for rank, (_, token, kind) in enumerate(found):
            kind += min(rank, MAX_RANK)
            # No likelier than a child of an earlier rank, and of all of them only one can be right.
            chance = min(hits[kind] / tries[kind], chance, left)
            left -= chance
            if (cost := node.cost * chance) >= -best[0]:
                break
            heapq.heapreplace(best, -cost)
            follow, context = followed.get(token, []), append(node.context, token)
            heapq.heappush(
                frontier,
                _Child(cost, rank, chance, number, token, kind, follow, context, node.depth + 1),
            )

    def _recycled(self, context: int) -> list[tuple[int, int]]:
        """Next tokens by the table, each with its kind: 1 and more, by length of the context and
        place."""
        for num_known, mask in LONGEST_FIRST:
            slot = (context & mask) % len(self._contexts)
            if self._contexts[slot] == context & mask:
                found = self._next_tokens[NUM_CANDIDATES * slot : NUM_CANDIDATES * (slot + 1)]
                first = 1 + (num_known - 1) * NUM_CANDIDATES
                return [(token, first + place) for place, token in enumerate(found) if token >= 0]
        return []

    def _stored(self, context: int) -> list[tuple[int, int]]:
        """The same by the datastore: by length of the context and share."""
        if self._datastore is None:
            return []
        tokens, shares, num_known = self._datastore.lookup(context)
        first = 1 + (num_known - 1) * len(BY_SHARE)
        return [
            (token, first + bisect_right(SHARES, share))
            for token, share in zip(tokens, shares, strict=True)
        ]


@cache
def _priors() -> np.ndarray:
    """Probability of each kind of child before anything is counted: float [_SHAPE]."""
    priors = np.zeros(_SHAPE)
    for match, of_table, of_store, rank in np.ndindex(*_SHAPE):
        context, place = divmod(of_table + NUM_CANDIDATES - 1, NUM_CANDIDATES)
        by_table = BY_CONTEXT[context] * BY_PLACE[place] if of_table else 0.0
        by_store = BY_SHARE[(of_store - 1) % len(BY_SHARE)] if of_store else 0.0
        is_none = (1.0 - BY_MATCH[match]) * (1.0 - by_table) * (1.0 - by_store)
        priors[match, of_table, of_store, rank] = (1.0 - is_none) * BY_RANK[rank]
    return priors


def _matches(token_ids: np.ndarray, num_tokens: int) -> list[Followed]:
    """The tokens, num_tokens or more, that followed each earlier match of the text's end; the
    longest and most recent first."""
    ends = np.flatnonzero(token_ids[:-1] == token_ids[-1])[-MAX_SCANNED:]
    if not len(ends):
        return []
    width = min(MAX_MATCH, len(token_ids) - 1)
    back = np.arange(width)
    places = ends[:, None] - back
    is_equal = (token_ids[np.maximum(places, 0)] == token_ids[len(token_ids) - 1 - back]) & (
        places >= 0
    )
    lengths = np.logical_and.accumulate(is_equal, axis=1).sum(axis=1)
    order = np.lexsort((-ends, -lengths))[:MAX_MATCHES]
    found = []
    for place, length in zip((ends[order] + 1).tolist(), lengths[order].tolist(), strict=True):
        tokens = token_ids[place : place + num_tokens].tolist()
        # A match that runs into the end of the text goes on with what it has already said: a
        # period.
        found.append(Followed(tokens * -(-num_tokens // len(tokens)), length))
    return found
