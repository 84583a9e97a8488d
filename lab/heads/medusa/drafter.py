"""Medusa heads as drafter: chains and trees of their likeliest tokens, from one pass for each
draft."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from lab.heads.medusa.head import MedusaHead, PackedMedusa
from lab.heads.one_pass import OnePassDrafter
from smartspec.control.records import DrafterView
from smartspec.core.batch import Batch
from smartspec.core.blocks import MemoryOp
from smartspec.core.request import Request
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.pass_of_size import verification_pass
from smartspec.engine.drafting.trees.proposals import Proposals, proposals_of
from smartspec.engine.models.model_runner import ModelRunner


class NoKVCache:
    """The cache of a runner whose passes read no text."""

    def fill_with_ones(self, slot: int, end: int) -> None:
        """Nothing to write."""


class MedusaRunner:
    """The heads beside their target. hidden: [num_slots, hidden_size], the target's last hidden
    state at the newest position that it has computed of every slot. name: for messages and the
    profile. is_rounded: no matter, these heads keep their type."""

    def __init__(
        self,
        head: MedusaHead,
        target: ModelRunner,
        *,
        name: str,
        num_slots: int,
        is_rounded: bool = False,
    ):
        loaded = target.loaded
        self.device, self.max_len, self.max_tile_tokens = (
            target.device,
            target.max_len,
            target.max_tile_tokens,
        )
        self.num_depths = head.config.num_heads
        self.target_ids = head.target_ids.cpu()
        weight_bytes = sum(p.numel() * p.element_size() for p in head.parameters())
        self._packed = PackedMedusa(head.to(self.device, loaded.dtype))
        self.loaded = replace(
            loaded, name=name, model=self._packed, num_layers=0, weight_bytes=weight_bytes
        )
        self.hidden = torch.zeros(
            num_slots, head.config.hidden_size, dtype=loaded.dtype, device=self.device
        )
        self.cache = NoKVCache()

    def apply(self, memory_ops: tuple[MemoryOp, ...]) -> None:
        """Nothing lies in the blocks: where a prefix is copied, the target computes at least the
        newest position."""

    def propose(
        self, segments: list[Segment], earlier_rows: list[int] | None = None, width: int = 1
    ) -> Proposals:
        """The likeliest tokens by forward; earlier_rows is None: there is one pass."""
        return proposals_of(self.forward(segments), self.target_ids, width)

    @torch.inference_mode()
    def forward(self, segments: list[Segment]) -> torch.Tensor:
        """Logits [sum of num_logits, draft_vocab_size], in the order of the segments: of each slot
        those of the first num_logits heads, of the last one again where there are no more."""
        counts = torch.tensor([segment.num_logits for segment in segments])
        rows = torch.arange(len(segments)).repeat_interleave(counts)
        heads = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
        hidden = self.hidden[[segment.slot for segment in segments]]
        return self._packed(hidden, rows, heads.clamp(max=self.num_depths - 1))


class MedusaDrafter(OnePassDrafter):
    """Point masses from the target's last hidden state at the newest computed position of every
    text. Implements core.drafter.TreeDrafter. target: a runner that taps that state."""

    runner: MedusaRunner

    def profile_pass(self, num_rows: int, num_new: int, context: int) -> Callable[[], object]:
        return verification_pass(self.runner, num_rows, num_new, context)

    def begin_step(self, batch: Batch) -> None:
        """Forget the slots that begin anew. In others, the length of the text says whether the
        state is its own."""
        for request in batch.prefill:
            self._num_known[request.slot] = 0

    def view(self, batch: Batch, is_queried: bool = True) -> DrafterView:
        """Drafts of a head, without a lag: there is no KV."""
        return DrafterView(super().view(batch, is_queried).lengths)

    def _keep(self, request: Request, features: torch.Tensor) -> None:
        """Only the last of the features, [n, hidden_size], of the n tokens that have become
        text."""
        self.runner.hidden[request.slot] = features[-1]
        self._num_known[request.slot] = request.num_computed_tokens + len(features)

    def _segment(self, request: Request, depth: int) -> Segment:
        return Segment(
            request.slot, 0, np.zeros(1, dtype=np.int32), min(depth, self.runner.num_depths)
        )
