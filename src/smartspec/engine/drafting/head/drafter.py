"""A trained head as drafter: chains and trees of its likeliest tokens, made from what the target
has computed anyway.

Per slot it keeps how far the target's features are known and how far its own KV holds them; the
latter lags when it was not used, and its next draft begins with one pass over what it missed. The
KV of its drafts is never kept: their entries are computed anew from the target's features, which
are better than its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from smartspec.control.records import UNLIMITED, DrafterSpec, DrafterView, FreeTests, StopRule
from smartspec.core.batch import NO_DRAFT, Batch, Draft, Verification
from smartspec.core.request import Request
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.head.first_acceptances import FirstAcceptances
from smartspec.engine.drafting.head.runner import HeadRunner
from smartspec.engine.drafting.pass_of_size import segments_of_size
from smartspec.engine.drafting.shell import KVDrafter
from smartspec.engine.drafting.trees.expansion import TreeExpansion
from smartspec.engine.drafting.trees.foresight import NUM_FORESEEN, Foresight
from smartspec.engine.drafting.trees.proposals import Proposals
from smartspec.engine.models.model_runner import ModelRunner


class HeadDrafter(KVDrafter):
    """Point masses, so that outputs are those of plain decoding, sampled ones included. Implements
    core.drafter.TreeDrafter.

    target: a runner with the head's taps. foresees: whether it may look at the random numbers of
    sampled requests, see engine.sampling.race: where no drafter draws its tokens."""

    def __init__(
        self,
        runner: HeadRunner,
        target: ModelRunner,
        num_slots: int,
        name: str,
        foresees: bool = False,
    ):
        super().__init__(runner, DrafterSpec(name, has_passes=True, makes_trees=True), num_slots)
        self.target = target
        # positions with features, at least those in the KV
        self._num_known = np.zeros(num_slots, dtype=np.int64)
        self._first = FirstAcceptances(name, target.taps)
        self._foresees = foresees

    def _copy(self, source: int, target: int) -> None:
        super()._copy(source, target)
        self._num_known[target] = self._num_known[source]

    def _forget(self, slot: int, num_tokens: int) -> None:
        """Nothing is known after so many tokens. The entry of the last one has read the token after
        it, which may be another now."""
        super()._forget(slot, max(num_tokens - 1, 0))
        self._num_known[slot] = min(self._num_known[slot], num_tokens)

    def profile_pass(self, num_rows: int, num_new: int, context: int) -> Callable[[], object]:
        """A pass over features, in which the head catches up; it says what follows the last token
        of each row."""
        segments = segments_of_size(self.runner, num_rows, num_new, context)
        return partial(
            self.runner.propose, [replace(segment, num_logits=1) for segment in segments]
        )

    def view(self, batch: Batch, is_queried: bool = True) -> DrafterView:
        """Drafts of any length where all features are known; how far its KV lags its next draft."""
        slots = [request.slot for request in batch.decoding]
        computed = np.array(
            [request.num_computed_tokens for request in batch.decoding], dtype=np.int64
        )
        can_draft = (self._num_known[slots] == computed) & (computed > 0)
        lag = np.maximum(computed - self._num_seen[slots] - 1, 0)
        return DrafterView(np.where(can_draft, UNLIMITED, 0), lag=lag)

    def draft(self, batch: Batch, lengths: np.ndarray, stop: StopRule | None = None) -> list[Draft]:
        """Draft lengths[i] tokens after the text of row i (int [R]), fewer where stop says so; a
        row of length 0 costs nothing."""
        return self.draft_trees(batch, lengths, lengths, 1, stop)

    def draft_trees(
        self,
        batch: Batch,
        lengths: np.ndarray,
        depths: np.ndarray,
        width: int,
        stop: StopRule | None = None,
        chances: np.ndarray | None = None,
    ) -> list[Draft]:
        """Draft the best lengths[i] nodes that depths[i] passes propose (int [R] each), see
        TreeExpansion. chances: see control.records.Plan."""
        room = [self.runner.max_len - request.num_computed_tokens for request in batch.decoding]
        trees = [
            TreeExpansion(width, *limits) for limits in zip(lengths.tolist(), room, strict=True)
        ]
        active = np.flatnonzero((lengths > 0) & (depths > 0)).tolist()
        feeds = [
            _Feed(row, trees[row], [-1], self._catch_up(batch.decoding[row])) for row in active
        ]
        if not feeds:
            return [NO_DRAFT] * len(trees)
        earlier_rows = None
        foresight = None
        if self._foresees and not all([batch.decoding[row].params.greedy for row in active]):
            foresight = Foresight(batch.decoding, int(depths.max()))
        for depth in range(int(depths.max())):
            num_children = width if foresight is None else max(width, NUM_FORESEEN)
            proposals = self.runner.propose(
                [feed.segment for feed in feeds], earlier_rows, num_children
            )
            if foresight is not None:
                proposals = foresight.of(
                    proposals, [feed.row for feed in feeds for _ in feed.nodes], depth
                )
            if chances is not None:
                proposals = proposals.with_chances(chances, np.full(len(proposals.chances), depth))
            confidence = _grow(feeds, proposals)
            rows = np.array([feed.row for feed in feeds])
            is_done = depths[rows] == depth + 1
            if stop is not None:
                first = np.cumsum([0, *(len(feed.nodes) for feed in feeds[:-1])])
                is_done |= np.asarray(
                    stop(depth, rows, np.array(confidence), proposals.entropy[first]), bool
                )
            feeds, earlier_rows = _next_feeds(feeds, is_done.tolist())
            if not feeds:
                break
        return [tree.draft() for tree in trees]

    def observe(
        self,
        batch: Batch,
        verified: np.ndarray,
        decoding: Sequence[Verification],
        prefill: Sequence[Verification | None],
    ) -> FreeTests:
        """Keep the target's features of all tokens that became text. No free tests: entries that
        are computed anew are mostly those of accepted drafts, and would say that it is better than
        it is."""
        self._first.note(verified, decoding)
        for index, (request, verification) in enumerate(zip(batch.decoding, decoding, strict=True)):
            self._keep(request, self.target.features[index][_text_rows(verification)])
        for index, request in enumerate(batch.prefill, start=len(batch.decoding)):
            self._keep(request, self.target.features[index])
        return super().observe(batch, verified, decoding, prefill)

    def _keep(self, request: Request, features: torch.Tensor) -> None:
        start = request.num_computed_tokens
        if self._num_known[request.slot] == start:
            end = start + len(features)
            self.runner.features[request.slot, start:end] = features
            self._num_known[request.slot] = end

    def _catch_up(self, request: Request) -> Segment:
        """A segment of all that the head's KV lacks."""
        slot, end = request.slot, request.num_computed_tokens
        start = int(self._num_seen[slot])
        self._num_seen[slot] = end
        return Segment(slot, start, request.token_ids[start + 1 : end + 1], num_logits=1)


@dataclass(frozen=True)
class _Feed:
    """The part of a pass that grows the tree of one row."""

    row: int
    tree: TreeExpansion
    nodes: list[int]  # those that are fed; -1 is the text
    segment: Segment  # in which they are fed


def _grow(feeds: list[_Feed], proposals: Proposals) -> list[float]:
    """Add the children that a pass proposes; returns how confident it is of each row, see
    StopRule."""
    token_ids, chances = proposals.lists
    confidence, first = [], 0
    for feed in feeds:
        end = first + len(feed.nodes)
        confidence.append(feed.tree.add(feed.nodes, token_ids[first:end], chances[first:end]))
        first = end
    return confidence


def _next_feeds(feeds: list[_Feed], is_done: list[bool]) -> tuple[list[_Feed], list[int]]:
    """The next feeds of rows that are not done and whose trees can become better, and the logits of
    this pass, by number, that each of their nodes stands after."""
    following, parents, first = [], [], 0
    for feed, done in zip(feeds, is_done, strict=True):
        nodes = [] if done else feed.tree.frontier()
        if nodes:
            places = {node: first + number for number, node in enumerate(feed.nodes)}
            parents += [places[node] for node in feed.tree.parents(nodes)]
            slot, start = feed.segment.slot, feed.segment.end
            mask = feed.tree.feed(nodes, start)
            segment = Segment(slot, start, feed.tree.token_ids(nodes), len(nodes), mask)
            following.append(_Feed(feed.row, feed.tree, nodes, segment))
        first += len(feed.nodes)
    return following, parents


def _text_rows(verification: Verification) -> slice | list[int]:
    """The rows that are text now, of the newest token and the nodes of a draft after it."""
    nodes = verification.accepted_nodes
    return (
        slice(1 + verification.num_accepted)
        if nodes is None
        else [0, *(1 + node for node in nodes)]
    )
