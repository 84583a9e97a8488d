"""One pass of a trained head: its packed weights, its KV in the target's slots, and the features it
reads."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig

from smartspec.core.blocks import MemoryOp
from smartspec.engine.attention.ragged import ATTENTION_NAME, Segment, register_attention
from smartspec.engine.attention.slot_memory import SlotRows
from smartspec.engine.drafting.head.eagle3 import Eagle3Head, Projections, rotary_tables
from smartspec.engine.drafting.head.native_head import NativeHead
from smartspec.engine.drafting.head.shared_rows import output_rows
from smartspec.engine.drafting.trees.proposals import Proposals, proposals_of
from smartspec.engine.kernels.cpu import elementwise
from smartspec.engine.models.fusion import FusedAttention, FusedMLP, FusedRMSNorm
from smartspec.engine.models.linear import pack_linears
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.models.quantized import QuantizedEmbedding
from smartspec.engine.models.ragged_runner import RaggedRunner, logit_rows

# tokens of a request that a pass is fed at once: with more it takes no less time for each
MAX_CHUNK = 128


class HeadRunner(RaggedRunner):
    """A head beside its target. features: [num_slots, max_len, feature_size], what the target's
    tapped layers computed at every position of every slot; memory that is not written costs nothing
    on a CPU.

    embedding: [V, hidden_size]; the target's where the head brings none. name: for messages and the
    profile. is_rounded: to blocks, where our kernel runs it.
    """

    def __init__(
        self,
        head: Eagle3Head,
        target: ModelRunner,
        *,
        name: str,
        num_slots: int,
        embedding: torch.Tensor | None = None,
        is_rounded: bool = True,
    ):
        layer, loaded = head.config.layer, target.loaded
        # kinds that never have one are no Eagle3Head
        if isinstance(head, Eagle3Head) and head.lm_head is None:
            head.lm_head = output_rows(
                loaded.model.get_output_embeddings(), head.target_ids.to(target.device)
            )
        own = replace(
            loaded,
            name=name,
            num_layers=1,
            num_heads=layer.num_attention_heads,
            num_kv_heads=layer.num_key_value_heads,
            head_dim=layer.head_dim,
            windows=(None,),
        )
        super().__init__(own, num_slots, target.max_len)
        self.target_ids = head.target_ids.cpu()
        self._embed = lookup(loaded.model.get_input_embeddings(), embedding, loaded.dtype)
        self._rows = SlotRows(
            num_slots, self.max_len, head.config.feature_size, loaded.dtype, self.device
        )
        self.features = self._rows.rows
        # Of the last pass, at the rows its logits are of: [sum of num_logits, hidden_size]. What
        # the next pass reads, and what the output embedding does.
        self.hidden = self.normed = torch.empty(0)
        table = loaded.model.get_input_embeddings()
        if embedding is not None or isinstance(table, nn.Embedding):
            table = nn.Embedding.from_pretrained(table.weight if embedding is None else embedding)
        self._native = self._packed = None
        if self.max_tile_tokens and NativeHead.applies_to(head, table, self.features):
            self._native = NativeHead(
                head,
                table,
                self.cache,
                self.features,
                self.max_tile_tokens,
                is_rounded,
                rounds_inputs=loaded.activations == "int8",
            )
            num_bytes = self._native.weight_bytes
        else:
            num_bytes = sum(p.numel() * p.element_size() for p in head.parameters())
            self._rotary = tuple(
                table.to(self.device, loaded.dtype) for table in rotary_tables(layer, self.max_len)
            )
            self._packed = self.pack(head.to(self.device, loaded.dtype), loaded.model)
        self.loaded = replace(own, weight_bytes=num_bytes)

    @staticmethod
    def pack(head: nn.Module, target: nn.Module) -> nn.Module:
        """The head for drafting alone, a module as Eagle3Head; it may take parts of the target."""
        layer = head.layers[0]
        layer.self_attn = packed_attention(layer.self_attn, head.config.layer)
        layer.mlp = FusedMLP(layer.mlp)
        pack_linears(head)
        for path, module in list(head.named_modules()):
            if type(module) is nn.RMSNorm:
                head.set_submodule(path, packed_norm(module))
        return head

    def apply(self, memory_ops: tuple[MemoryOp, ...]) -> None:
        """See RaggedRunner."""
        super().apply(memory_ops)
        for op in memory_ops:
            self._rows.apply(op)

    def propose(
        self, segments: list[Segment], earlier_rows: list[int] | None = None, width: int = 1
    ) -> Proposals:
        """One pass: what follows each row whose logits the segments need, in their order.

        A segment's token_ids are those after its positions (token p + 1 at position p).
        earlier_rows: for each token, which row of the last pass's proposals it stands after, whose
        hidden state takes the place of features; None: the features of those positions are read, of
        long segments in several passes.
        """
        if earlier_rows is None:
            segments = [self._last_chunk(segment) for segment in segments]
        return self._pass(segments, earlier_rows, width)

    def _last_chunk(self, segment: Segment) -> Segment:
        """Feed all but the last chunk, which is returned, and with it every token whose logits are
        needed."""
        while (num_more := segment.num_tokens - max(MAX_CHUNK, segment.num_logits)) > 0:
            num = min(MAX_CHUNK, num_more)
            self._pass([replace(segment, token_ids=segment.token_ids[:num], num_logits=0)], None, 1)
            segment = replace(segment, start=segment.start + num, token_ids=segment.token_ids[num:])
        return segment

    def _pass(
        self, segments: list[Segment], earlier_rows: list[int] | None, width: int
    ) -> Proposals:
        if self._native is not None:
            proposals = self._native.propose(segments, earlier_rows, width)
            self.normed = self._native.normed(len(proposals.entropy))
            return proposals
        hidden = (
            None
            if earlier_rows is None
            else self.hidden[torch.tensor(earlier_rows, device=self.device)]
        )
        return proposals_of(self.forward(segments, hidden), self.target_ids, width)

    @torch.inference_mode()
    def forward(self, segments: list[Segment], hidden: torch.Tensor | None = None) -> torch.Tensor:
        """A pass in torch: logits [sum of num_logits, draft_vocab_size], in the order of the
        segments.

        hidden: [N, hidden_size], what stands for the features, in the segments' order; None: the
        features of those positions.
        """
        order, ordered = self._placed(segments)
        if hidden is None:
            known = [self.features[s.slot, s.start : s.end] for s in ordered]
            hidden = self._packed.combine(torch.cat(known)[None])[0]
        elif order != sorted(order):
            pieces = hidden.split([s.num_tokens for s in segments])
            hidden = torch.cat([pieces[i] for i in order])
        token_ids, plan = self._plan(ordered)
        turn = tuple(table[plan.positions][None] for table in self._rotary)
        normed, hidden = self._packed(self._embed(token_ids)[None], hidden[None], turn, plan)
        wanted = torch.from_numpy(logit_rows(ordered, order)).to(self.device)
        num_logits = sum(s.num_logits for s in segments)
        self.hidden, self.normed = hidden[0, wanted][:num_logits], normed[0, wanted][:num_logits]
        return self._packed.lm_head(normed[:, wanted])[0, :num_logits]


def lookup(
    module: nn.Module, own: torch.Tensor | None, dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Embeddings of token ids, as the table has them: a head knows nothing of what some targets
    multiply them by."""
    if own is None and isinstance(module, QuantizedEmbedding):
        return module.look_up  # its weights stay in blocks
    table = module.weight if own is None else own.to(module.weight.device, dtype)
    return partial(F.embedding, weight=table)


def packed_attention(attention: Projections, layer: LlamaConfig) -> FusedAttention:
    """The attention of a head's layer in a pass over our cache."""
    register_attention()
    attention.config, attention.layer_idx, attention.head_dim = layer, 0, layer.head_dim
    layer._attn_implementation = ATTENTION_NAME
    return FusedAttention(attention, {"scaling": layer.head_dim**-0.5})


def packed_norm(norm: nn.RMSNorm) -> nn.Module:
    return FusedRMSNorm(norm.weight, norm.eps) if elementwise.applies_to(norm.weight) else norm
