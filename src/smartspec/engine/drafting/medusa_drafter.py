"""Medusa heads as drafter: chains and trees of their likeliest tokens, from one pass for each draft."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from smartspec.control.records import UNLIMITED, DrafterSpec, DrafterView, FreeTests, StopRule
from smartspec.core.batch import NO_DRAFT, Batch, Draft, Verification
from smartspec.core.blocks import MemoryOp
from smartspec.core.request import Request
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.first_acceptances import FirstAcceptances
from smartspec.engine.drafting.medusa import MedusaHead, PackedMedusa
from smartspec.engine.drafting.pass_of_size import verification_pass
from smartspec.engine.drafting.product_tree import product_trees
from smartspec.engine.drafting.proposals import proposals_of
from smartspec.engine.models.linear import pad_small_batches, warm_up
from smartspec.engine.models.model_runner import ModelRunner


class NoKVCache:
    """Of a runner whose passes read no text."""

    def fill_with_ones(self, slot: int, end: int) -> None:
        """Nothing to write."""


class MedusaRunner:
    """The heads beside their target. hidden: [num_slots, hidden_size], the target's last hidden state at the newest
    position that it has computed of every slot. name: for messages and the profile. is_rounded: no matter, these heads
    keep their type."""

    def __init__(self, head: MedusaHead, target: ModelRunner, *, name: str, num_slots: int, is_rounded: bool = False):
        loaded = target.loaded
        self.device, self.max_len, self.max_tile_tokens = target.device, target.max_len, target.max_tile_tokens
        self.num_heads = head.config.num_heads
        self.target_ids = head.target_ids.cpu()
        weight_bytes = sum(p.numel() * p.element_size() for p in head.parameters())
        self._packed = PackedMedusa(head.to(self.device, loaded.dtype))
        pad_small_batches(self._packed)
        warm_up(self._packed)
        self.loaded = replace(loaded, name=name, model=self._packed, num_layers=0, weight_bytes=weight_bytes)
        self.hidden = torch.zeros(num_slots, head.config.hidden_size, dtype=loaded.dtype, device=self.device)
        self.cache = NoKVCache()

    def apply(self, memory_ops: tuple[MemoryOp, ...]) -> None:
        """Nothing lies in the blocks: where a prefix is copied, the target computes at least the newest position."""

    @torch.inference_mode()
    def forward(self, segments: list[Segment]) -> torch.Tensor:
        """Logits [sum of num_logits, draft_vocab_size], in the order of the segments: of each slot those of the first
        num_logits heads, of the last one again where there are no more."""
        counts = torch.tensor([segment.num_logits for segment in segments])
        rows = torch.arange(len(segments)).repeat_interleave(counts)
        heads = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
        hidden = self.hidden[[segment.slot for segment in segments]]
        return self._packed(hidden, rows, heads.clamp(max=self.num_heads - 1))


class MedusaDrafter:
    """Drafts point masses, so that outputs are those of plain decoding, sampled ones included. Implements
    core.drafter.TreeDrafter. target: a runner that taps its last hidden state."""

    def __init__(self, runner: MedusaRunner, target: ModelRunner, num_slots: int, name: str, foresees: bool = False):
        self.spec = DrafterSpec(name, has_passes=True, makes_trees=True, one_pass_depth=runner.num_heads)
        self.runner, self.target = runner, target
        self._num_known = np.zeros(num_slots, dtype=np.int64)  # tokens up to the position whose hidden state is kept
        self._first = FirstAcceptances(name, target.taps)

    def begin_step(self, batch: Batch) -> None:
        """What is kept of a slot is known by the length of its text; a slot that begins anew is computed first."""
        for request in batch.prefill:
            self._num_known[request.slot] = 0

    @property
    def profile_key(self) -> list:
        return self.runner.loaded.profile_key

    def profile_pass(self, num_rows: int, num_new: int, context: int) -> Callable[[], object]:
        return verification_pass(self.runner, num_rows, num_new, context)

    def view(self, batch: Batch, is_queried: bool = True) -> DrafterView:
        """Drafts of any size where the newest position's hidden state is known."""
        slots = [request.slot for request in batch.decoding]
        computed = np.array([request.num_computed_tokens for request in batch.decoding], dtype=np.int64)
        return DrafterView(np.where((self._num_known[slots] == computed) & (computed > 0), UNLIMITED, 0))

    def draft(self, batch: Batch, lengths: np.ndarray, stop: StopRule | None = None) -> list[Draft]:
        """Draft lengths[i] tokens after the text of row i (int [R]), fewer where there are fewer heads; a row of
        length 0 costs nothing."""
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
        """The best lengths[i] nodes of at most depths[i] levels (int [R] each) of the product of what the heads
        propose. stop is not called: there is one pass."""
        active = np.flatnonzero((lengths > 0) & (depths > 0)).tolist()
        drafts = [NO_DRAFT] * len(lengths)
        if not active:
            return drafts
        levels = np.minimum(np.minimum(lengths, depths), self.runner.num_heads)
        nothing = np.zeros(1, dtype=np.int32)
        segments = [Segment(batch.decoding[row].slot, 0, nothing, int(levels[row])) for row in active]
        proposals = proposals_of(self.runner.forward(segments), self.runner.target_ids, width)
        if chances is not None:
            proposals = proposals.taken_for(chances, np.concatenate([np.arange(s.num_logits) for s in segments]))
        made = product_trees(proposals, levels[active].tolist(), lengths[active].tolist())
        for row, draft in zip(active, made, strict=True):
            drafts[row] = draft
        return drafts

    def observe(
        self,
        batch: Batch,
        verified: np.ndarray,
        decoding: Sequence[Verification],
        prefill: Sequence[Verification | None],
    ) -> FreeTests:
        """Keep the target's last hidden state at the last token before the newest one of every text. No free tests."""
        self._first.note(verified, decoding)
        for index, (request, verification) in enumerate(zip(batch.decoding, decoding, strict=True)):
            nodes = verification.accepted_nodes
            row = 1 + nodes[-1] if nodes else verification.num_accepted
            self._keep(request, self.target.features[index][row], 1 + verification.num_accepted)
        for index, request in enumerate(batch.prefill, start=len(batch.decoding)):
            features = self.target.features[index]
            self._keep(request, features[-1], len(features))
        return FreeTests(*np.zeros((3, len(verified)), dtype=np.int64))

    def _keep(self, request: Request, hidden: torch.Tensor, num_tokens: int) -> None:
        self.runner.hidden[request.slot] = hidden
        self._num_known[request.slot] = request.num_computed_tokens + num_tokens
