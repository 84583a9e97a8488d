"""A P-EAGLE head as drafter: chains and trees from one pass for each draft."""

from collections.abc import Callable
from functools import partial

import numpy as np

from lab.heads.one_pass import OnePassDrafter
from lab.heads.p_eagle.head import PEagleHead
from smartspec.core.request import Request
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.head.runner import HeadRunner
from smartspec.engine.drafting.pass_of_size import segments_of_size
from smartspec.engine.models.model_runner import ModelRunner


class PEagleRunner(HeadRunner):
    """The runner of a P-EAGLE head. mask_features: [1, feature_size], which stand for features that
    are not known."""

    def __init__(self, head: PEagleHead, target: ModelRunner, **rest):
        super().__init__(head, target, **rest)
        self.mask_token_id, self.num_depths = head.mask_token_id, head.num_depths
        self.mask_features = head.mask_hidden.detach()[0].to(self.device, self.features.dtype)


class PEagleDrafter(OnePassDrafter):
    """Chains and trees of any length up to what the head was trained for. Implements
    core.drafter.TreeDrafter."""

    runner: PEagleRunner

    def profile_pass(self, num_rows: int, num_new: int, context: int) -> Callable[[], object]:
        """A pass that makes whole drafts says what follows each token."""
        return partial(
            self.runner.propose, segments_of_size(self.runner, num_rows, num_new, context)
        )

    def _segment(self, request: Request, depth: int) -> Segment:
        """Entries that the head's KV lacks, and after them entries for the tokens after the next
        one. Their features and KV lie where those of text will."""
        segment = self._catch_up(request)
        num_masks = min(depth, self.spec.one_pass_depth, 1 + self.runner.max_len - segment.end) - 1
        self.runner.features[segment.slot, segment.end : segment.end + num_masks] = (
            self.runner.mask_features
        )
        masks = np.full(num_masks, self.runner.mask_token_id, dtype=segment.token_ids.dtype)
        token_ids = np.concatenate([segment.token_ids, masks])
        return Segment(segment.slot, segment.start, token_ids, num_logits=1 + num_masks)
