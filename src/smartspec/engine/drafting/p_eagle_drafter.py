"""A P-EAGLE head as drafter: chains and trees from one pass for each draft."""

from collections.abc import Callable
from functools import partial

import numpy as np

from smartspec.control.records import DrafterSpec, StopRule
from smartspec.core.batch import NO_DRAFT, Batch, Draft
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.head_drafter import HeadDrafter
from smartspec.engine.drafting.head_runner import HeadRunner
from smartspec.engine.drafting.p_eagle import PEagleHead
from smartspec.engine.drafting.pass_of_size import segments_of_size
from smartspec.engine.drafting.product_tree import product_trees
from smartspec.engine.models.model_runner import ModelRunner


class PEagleRunner(HeadRunner):
    """mask_features: [1, feature_size], what stands for features that are not known."""

    def __init__(self, head: PEagleHead, target: ModelRunner, **rest):
        super().__init__(head, target, **rest)
        self.mask_token_id, self.num_depths = head.mask_token_id, head.num_depths
        self.mask_features = head.mask_hidden.detach()[0].to(self.device, self.features.dtype)


class PEagleDrafter(HeadDrafter):
    """Chains and trees from one pass for each draft, of any length up to what the head was trained for. Implements
    core.drafter.TreeDrafter."""

    runner: PEagleRunner

    def __init__(self, runner: PEagleRunner, target: ModelRunner, num_slots: int, name: str, foresees: bool = False):
        super().__init__(runner, target, num_slots, name)
        self.spec = DrafterSpec(name, has_passes=True, makes_trees=True, one_pass_depth=runner.num_depths)

    def profile_pass(self, num_rows: int, num_new: int, context: int) -> Callable[[], object]:
        """A pass that makes whole drafts says what follows each token."""
        return partial(self.runner.propose, segments_of_size(self.runner, num_rows, num_new, context))

    def draft_trees(
        self,
        batch: Batch,
        lengths: np.ndarray,
        depths: np.ndarray,
        width: int,
        stop: StopRule | None = None,
        chances: np.ndarray | None = None,
    ) -> list[Draft]:
        """The best lengths[i] nodes of at most depths[i] levels (int [R] each) of the product of what the entries
        propose. stop is not called: there is one pass."""
        active = np.flatnonzero((lengths > 0) & (depths > 0)).tolist()
        drafts = [NO_DRAFT] * len(lengths)
        if not active:
            return drafts
        levels = np.minimum(lengths, depths)
        segments = [self._masked(self._catch_up(batch.decoding[row]), int(levels[row])) for row in active]
        proposals = self.runner.propose(segments, None, width)
        if chances is not None:
            proposals = proposals.taken_for(chances, np.concatenate([np.arange(s.num_logits) for s in segments]))
        made = product_trees(proposals, [s.num_logits for s in segments], lengths[active].tolist())
        for row, draft in zip(active, made, strict=True):
            drafts[row] = draft
        return drafts

    def _masked(self, segment: Segment, depth: int) -> Segment:
        """The segment with entries after it for the tokens after the next one. Their features and KV lie where those
        of text will."""
        num_masks = min(depth, self.spec.one_pass_depth, 1 + self.runner.max_len - segment.end) - 1
        self.runner.features[segment.slot, segment.end : segment.end + num_masks] = self.runner.mask_features
        masks = np.full(num_masks, self.runner.mask_token_id, dtype=segment.token_ids.dtype)
        token_ids = np.concatenate([segment.token_ids, masks])
        return Segment(segment.slot, segment.start, token_ids, num_logits=1 + num_masks)
