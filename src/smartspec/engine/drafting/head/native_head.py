"""Passes of an EAGLE-3 head in our kernel (kernels/cpu/head_pass.h), its weights rounded to blocks.

Drafts are point masses, so rounding changes how many are accepted at most, never an output.
"""

from itertools import accumulate

import numpy as np
import torch
from gguf import GGMLQuantizationType
from torch import nn

from smartspec.engine.attention.kv_cache import KVCache
from smartspec.engine.attention.ragged import Segment, ancestors_of, make_tiles
from smartspec.engine.drafting.head.eagle3 import Eagle3Head, HeadConfig, rotary_tables
from smartspec.engine.drafting.trees.proposals import Proposals
from smartspec.engine.kernels.cpu import native
from smartspec.engine.kernels.cpu.decoder_layer import LIBRARY, Form, Layer, Norms
from smartspec.engine.kernels.cpu.head_pass import Head, HeadPass
from smartspec.engine.kernels.cpu.quantized_linear import Weight, describe_floats
from smartspec.engine.kernels.cpu.shapes import LayerShape
from smartspec.engine.models.linear import joined, prepared
from smartspec.engine.models.load import give_back_memory
from smartspec.engine.models.quantize import quantize
from smartspec.engine.models.quantized import (
    QuantizedEmbedding,
    lay_out_by_panels,
    round_inputs,
    weight_bytes,
)

BLOCKS = GGMLQuantizationType.Q4_1
MIN_ROWS = 512  # that there is memory for: what no pass needs is never written and costs nothing


class NativeHead:
    """A head, which it takes over, with its cache of one layer.

    embedding: what it looks tokens up in. features: [num_slots, max_len, feature_size]. max_tile:
    see AttentionPlan. is_rounded: to blocks. rounds_inputs: of those to 8 bits.
    """

    def __init__(
        self,
        head: Eagle3Head,
        embedding: nn.Module,
        cache: KVCache,
        features: torch.Tensor,
        max_tile: int,
        is_rounded: bool,
        rounds_inputs: bool,
    ):
        if is_rounded:
            quantize(head, BLOCKS)
        self.weight_bytes = weight_bytes(head)
        self._parts = _Parts(head, embedding)
        lay_out_by_panels(self._parts)
        if rounds_inputs:
            round_inputs(self._parts, frozenset([BLOCKS]))
        give_back_memory()  # else the pass lies where the floats have been, all of it resident
        shape = head.config.layer
        self._max_tile, self._vocabulary = max_tile, head.config.draft_vocab_size
        tables = rotary_tables(shape, features.shape[1])
        self._pass = HeadPass(
            self._parts.for_kernel(),
            _shape(head.config),
            MIN_ROWS,
            cache.keys[0],
            cache.values[0],
            features,
            *tables,
        )

    @staticmethod
    def applies_to(head: nn.Module, embedding: nn.Module, features: torch.Tensor) -> bool:
        """True where this machine has a kernel for the head."""
        can_look_up = isinstance(embedding, QuantizedEmbedding) or (
            type(embedding) is nn.Embedding and embedding.weight.dtype == torch.float32
        )
        has_kernel = native.why_not(LIBRARY, features.device, features.dtype) is None
        return isinstance(head, Eagle3Head) and can_look_up and has_kernel

    def propose(
        self, segments: list[Segment], earlier_rows: list[int] | None, width: int
    ) -> Proposals:
        """See HeadRunner.propose."""
        ends = list(accumulate(segment.num_tokens for segment in segments))
        if ends[-1] > self._pass.num_rows:
            self._pass = self._pass.larger(2 * ends[-1])
        token_ids = (
            segments[0].token_ids
            if len(segments) == 1
            else np.concatenate([s.token_ids for s in segments])
        )
        wanted = [
            row
            for s, end in zip(segments, ends, strict=True)
            for row in range(end - s.num_logits, end)
        ]
        found = self._pass.run(
            make_tiles(segments, self._max_tile),
            ancestors_of(segments),
            np.ascontiguousarray(token_ids, dtype=np.int32),
            None if earlier_rows is None else np.array(earlier_rows, dtype=np.int64),
            np.array(wanted, dtype=np.int64),
            min(width, self._vocabulary),
        )
        return Proposals(*found)

    def normed(self, num_rows: int) -> torch.Tensor:
        """The output embedding's input in the last pass's first rows, [num_rows, hidden_size]."""
        return self._pass.normed[:num_rows]


class _Parts(nn.Module):
    """The kernel's weights, in the form that it reads. None of them may move in memory."""

    def __init__(self, head: Eagle3Head, embedding: nn.Module):
        super().__init__()
        config, layer = head.config, head.layers[0]
        attention, mlp = layer.self_attn, layer.mlp
        self.config, self.embedding = config, embedding
        self.qkv = joined([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out, self.down = prepared(attention.o_proj), prepared(mlp.down_proj)
        self.gate_up = joined([mlp.gate_proj, mlp.up_proj])
        self.fc, self.lm_head = prepared(head.fc), prepared(head.lm_head)
        self.embed_norm, self.hidden_norm = layer.input_layernorm, layer.hidden_norm
        self.mlp_norm, self.norm = layer.post_attention_layernorm, head.norm
        self.head_norms = attention.q_norm, attention.k_norm
        self.all_taps_norm = head.input_norm.weight if config.norm_before_fc else None
        of_taps = torch.cat([norm.weight for norm in head.fc_norm]) if config.fc_norm else None
        self.tap_norms = None if of_taps is None else nn.Parameter(of_taps, requires_grad=False)
        self.target_ids = head.target_ids

    def for_kernel(self) -> Head:
        """The head as the kernel is given it; it holds addresses of this module's tensors."""
        config, shape = self.config, _shape(self.config)
        query, key = (None if norm is None else norm.weight for norm in self.head_norms)
        layer = Layer.of(
            shape,
            Norms(
                before_attention=self.hidden_norm.weight,
                before_mlp=self.mlp_norm.weight,
                query=query,
                key=key,
            ),
            [linear.kernel_weights for linear in (self.qkv, self.out, self.gate_up, self.down)],
            Form(config.layer.rms_norm_eps),
            inputs=2 * shape.hidden_size,
        )
        of_taps = {"all_taps_norm": self.all_taps_norm, "tap_norms": self.tap_norms}
        (combine,), (lm_head,) = self.fc.kernel_weights, self.lm_head.kernel_weights
        return Head.of(
            layer,
            shape,
            {"embed_norm": self.embed_norm.weight, "final_norm": self.norm.weight, **of_taps},
            {"embedding": _rows(self.embedding), "combine": combine, "lm_head": lm_head},
            self.target_ids,
            len(config.taps),
            norm_before_residual=config.norm_before_residual,
            norm_output=config.norm_output,
        )


def _rows(embedding: nn.Module) -> Weight:
    if isinstance(embedding, QuantizedEmbedding):
        return embedding.quantized.describe()
    return describe_floats(embedding.weight)


def _shape(config: HeadConfig) -> LayerShape:
    layer = config.layer
    heads = layer.num_attention_heads, layer.num_key_value_heads
    return LayerShape(
        layer.hidden_size, layer.intermediate_size, *heads, layer.head_dim, layer.head_dim
    )
