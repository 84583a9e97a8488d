"""A ReDrafter head as drafter: chains and trees, one short pass per depth."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from lab.heads.medusa.drafter import NoKVCache
from lab.heads.redrafter.head import ReDrafterHead
from smartspec.control.records import DrafterView
from smartspec.core.batch import Batch
from smartspec.core.blocks import MemoryOp
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.attention.slot_memory import SlotRows
from smartspec.engine.drafting.head.drafter import HeadDrafter
from smartspec.engine.drafting.head.runner import lookup
from smartspec.engine.drafting.pass_of_size import segments_of_size
from smartspec.engine.drafting.trees.proposals import Proposals, proposals_of
from smartspec.engine.models.linear import pack_linears
from smartspec.engine.models.model_runner import ModelRunner


class ReDrafterRunner:
    """The head beside its target. features: [num_slots, max_len, hidden_size], the target's last
    hidden state at every position of every slot. name: for messages and the profile. is_rounded: no
    matter, this head keeps its type."""

    def __init__(
        self,
        head: ReDrafterHead,
        target: ModelRunner,
        *,
        name: str,
        num_slots: int,
        is_rounded: bool = False,
    ):
        loaded = target.loaded
        self.device, self.max_len = target.device, target.max_len
        self.target_ids = head.target_ids.cpu()
        weight_bytes = sum(p.numel() * p.element_size() for p in head.parameters())
        self._embed = lookup(loaded.model.get_input_embeddings(), None, loaded.dtype)
        self._head = head.to(self.device, loaded.dtype)
        pack_linears(self._head)
        self.loaded = replace(
            loaded, name=name, model=self._head, num_layers=0, weight_bytes=weight_bytes
        )
        self._rows = SlotRows(
            num_slots, self.max_len, head.config.feature_size, loaded.dtype, self.device
        )
        self.features, self.cache = self._rows.rows, NoKVCache()
        # of the last pass's rows: the target's hidden state and the head's own
        self._reached = torch.empty(0)

    def apply(self, memory_ops: tuple[MemoryOp, ...]) -> None:
        """Carry out the block manager's memory operations, in order."""
        for op in memory_ops:
            self._rows.apply(op)

    @torch.inference_mode()
    def propose(
        self, segments: list[Segment], earlier_rows: list[int] | None = None, width: int = 1
    ) -> Proposals:
        """See HeadRunner.propose. Of a text, the newest token and the hidden state before it are
        all that is read."""
        if earlier_rows is None:
            hidden, state = (
                torch.stack([self.features[s.slot, s.end - 1] for s in segments])[None],
                None,
            )
            token_ids = np.array([segment.token_ids[-1] for segment in segments], dtype=np.int64)
        else:
            hidden, state = self._reached[:, torch.tensor(earlier_rows, device=self.device)].chunk(
                2, dim=-1
            )
            token_ids = np.concatenate([segment.token_ids for segment in segments]).astype(np.int64)
        state = self._head.next_state(
            self._embed(torch.from_numpy(token_ids).to(self.device))[None], state
        )
        self._reached = torch.cat([hidden, state], dim=-1)
        logits = self._head.lm_head(self._head.normed(hidden, state))[0]
        return proposals_of(logits, self.target_ids, width)


class ReDrafterDrafter(HeadDrafter):
    """Implements core.drafter.TreeDrafter. Where ReDrafter keeps its likeliest beams and shares
    their prefixes, the likeliest nodes of all are kept, see TreeExpansion."""

    runner: ReDrafterRunner

    def profile_pass(self, num_rows: int, num_new: int, context: int) -> Callable[[], object]:
        """However many tokens are new, a pass reads the newest."""
        segments = segments_of_size(self.runner, num_rows, num_new, context)
        return partial(
            self.runner.propose, [replace(segment, num_logits=1) for segment in segments]
        )

    def view(self, batch: Batch, is_queried: bool = True) -> DrafterView:
        """Drafts of a head, without a lag: there is no KV."""
        return DrafterView(super().view(batch, is_queried).lengths)
