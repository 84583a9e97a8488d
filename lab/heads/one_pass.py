"""Heads that make a whole draft in one pass, as drafters."""

import numpy as np

from lab.heads.product import product_trees
from smartspec.control.records import DrafterSpec
from smartspec.core.batch import NO_DRAFT, Batch, Draft
from smartspec.core.request import Request
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.head.drafter import HeadDrafter
from smartspec.engine.models.model_runner import ModelRunner


class OnePassDrafter(HeadDrafter):
    """Chains and trees of up to runner.num_depths levels. Implements core.drafter.TreeDrafter, but
    for _segment."""

    def __init__(
        self, runner, target: ModelRunner, num_slots: int, name: str, foresees: bool = False
    ):
        super().__init__(runner, target, num_slots, name)
        self.spec = DrafterSpec(
            name, has_passes=True, makes_trees=True, one_pass_depth=runner.num_depths
        )

    def draft_trees(
        self, batch: Batch, lengths, depths, width, stop=None, chances=None
    ) -> list[Draft]:
        """The best lengths[i] nodes of at most depths[i] levels (int [R] each) of the product of
        what the levels propose. stop is not called: there is one pass."""
        active = np.flatnonzero((lengths > 0) & (depths > 0)).tolist()
        drafts = [NO_DRAFT] * len(lengths)
        if not active:
            return drafts
        levels = np.minimum(lengths, depths)
        segments = [self._segment(batch.decoding[row], int(levels[row])) for row in active]
        proposals = self.runner.propose(segments, None, width)
        if chances is not None:
            proposals = proposals.with_chances(
                chances, np.concatenate([np.arange(s.num_logits) for s in segments])
            )
        made = product_trees(proposals, [s.num_logits for s in segments], lengths[active].tolist())
        for row, draft in zip(active, made, strict=True):
            drafts[row] = draft
        return drafts

    def _segment(self, request: Request, depth: int) -> Segment:
        """The part of a pass that drafts depth tokens after a request's text, or as many as it
        can."""
        raise NotImplementedError
