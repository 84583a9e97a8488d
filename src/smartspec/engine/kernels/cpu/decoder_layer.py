"""Decoder layers of Llama's shape in one call (decoder_layer.c), fp32 on CPU.

Why: with an operator per call, a third of a pass over one token of the default model went into dispatch, waking threads
and small operations between its linears.
"""

import ctypes
import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from smartspec.engine.kernels.cpu import native
from smartspec.engine.kernels.cpu.quantized_linear import Weight, require_fp32
from smartspec.engine.kernels.cpu.ragged_attention import Attention, attention_of

LIBRARY = "decoder_layer"


MAX_PARTS = 3


class Linear(ctypes.Structure):
    """The struct of the same name in decoder_layer.h."""

    _fields_ = [("parts", Weight * MAX_PARTS), ("num_parts", ctypes.c_int64), ("outputs", ctypes.c_int64)]

    @classmethod
    def of(cls, parts: list[Weight]) -> "Linear":
        """Weights whose outputs stand side by side."""
        return cls((Weight * MAX_PARTS)(*parts), len(parts), sum(weight.outputs for weight in parts))


class Layer(ctypes.Structure):
    """The struct of the same name in decoder_layer.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, Linear) for name in ("qkv", "out", "gate_up", "down")),
        ("epsilon", ctypes.c_float),
    ]


class PlacedLayer(ctypes.Structure):
    """The struct of the same name in decoder_layer.h."""

    _fields_ = [
        ("layer", ctypes.POINTER(Layer)),
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
    ]

    @classmethod
    def of(
        cls, layer: Layer, keys: torch.Tensor, values: torch.Tensor, window: int | None, scale: float
    ) -> "PlacedLayer":
        """keys, values: the layer's, [slots, num_kv_heads, max_len, head_dim]. All must outlive it."""
        return cls(ctypes.pointer(layer), keys.data_ptr(), values.data_ptr(), window or 0, scale)


class PassFields(ctypes.Structure):
    """The struct Pass in decoder_layer.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("input", "output", "cosine", "sine")),
        *((name, ctypes.c_void_p) for name in ("normed", "heads", "attended", "gate_up", "gated")),
        ("attention", Attention),
        ("num_rows", ctypes.c_int64),
    ]


class LayerShape(NamedTuple):
    """What the scratch memory of a layer depends on."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


class Pass:
    """Memory for the layers of one shape in one pass over num_rows tokens in tiles, see ragged_attention."""

    def __init__(
        self,
        shape: LayerShape,
        num_rows: int,
        num_padding: int,
        keys: torch.Tensor,
        tiles: torch.Tensor,
        ancestors: torch.Tensor | None,
    ):
        """keys: of any layer of the cache. The last num_padding rows are no tokens: they lie in no tile."""
        self.shape = shape
        num_all_heads = shape.num_heads + 2 * shape.num_kv_heads
        normed = torch.empty(num_rows, shape.hidden_size)
        heads = torch.empty(num_rows, num_all_heads, shape.head_dim)
        attended = torch.empty(num_rows, shape.num_heads, shape.head_dim)
        attended[num_rows - num_padding :] = 0.0
        gate_up, gated = (torch.empty(num_rows, n * shape.intermediate_size) for n in (2, 1))
        query, key, value = heads.transpose(0, 1).split([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads])
        self._memory = normed, heads, attended, gate_up, gated
        attention = attention_of(query, key, value, keys, keys, attended, tiles, 1.0, None, ancestors)
        self._read = tiles, ancestors
        pointers = (tensor.data_ptr() for tensor in self._memory)
        self._pass = PassFields(None, None, None, None, *pointers, attention, num_rows)

    def run(
        self, layers: Sequence[PlacedLayer], hidden_states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
    ) -> torch.Tensor:
        """hidden_states [1, num_rows, hidden_size] through the layers, which lie in a ctypes array -> the same shape;
        new keys and values are written to the cache. cosine, sine: [1, num_rows, head_dim].
        """
        p = self._pass
        require_fp32("hidden_states", hidden_states, (1, p.num_rows, self.shape.hidden_size))
        for name, factors in (("cosine", cosine), ("sine", sine)):
            require_fp32(name, factors, (1, p.num_rows, self.shape.head_dim))
        output = torch.empty_like(hidden_states)
        p.input, p.output = hidden_states.data_ptr(), output.data_ptr()
        p.cosine, p.sine = cosine.data_ptr(), sine.data_ptr()
        _kernels().decoder_layers(layers, len(layers), ctypes.byref(p))
        return output


@functools.cache
def _kernels() -> ctypes.CDLL:
    library = native.load_kernels(LIBRARY).library
    library.decoder_layers.argtypes = [ctypes.POINTER(PlacedLayer), ctypes.c_int64, ctypes.POINTER(PassFields)]
    return library
