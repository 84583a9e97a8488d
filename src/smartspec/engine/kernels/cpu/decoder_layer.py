"""Decoder layers in one call (passes.c, decoder_layer.h), fp32 on CPU.

Why: with an operator per call, a third of a pass over one token of the default model went into
dispatch, waking threads and small operations between its linears.
"""

import ctypes
import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from smartspec.engine.kernels.cpu import native
from smartspec.engine.kernels.cpu.elementwise import ACTIVATIONS
from smartspec.engine.kernels.cpu.quantized_linear import LIBRARY, Weight, rounded_memory
from smartspec.engine.kernels.cpu.ragged_attention import (
    Attention,
    CachedLayer,
    Heads,
    attention_of,
)
from smartspec.engine.kernels.cpu.shapes import LayerShape, address, fields, optional_address

MAX_PARTS = 3


class Linear(ctypes.Structure):
    """The struct of the same name in decoder_layer.h."""

    _fields_ = [
        ("parts", Weight * MAX_PARTS),
        ("num_parts", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
    ]

    @classmethod
    def of(cls, name: str, parts: list[Weight], outputs: int, inputs: int) -> "Linear":
        """Weights whose outputs stand side by side. Raises ValueError where they are not so many
        outputs by inputs."""
        found = sum(weight.outputs for weight in parts)
        if (
            found != outputs
            or any(weight.inputs != inputs for weight in parts)
            or len(parts) > MAX_PARTS
        ):
            shapes = [(weight.outputs, weight.inputs) for weight in parts]
            raise ValueError(
                f"{name} must be up to {MAX_PARTS} weights of {outputs} outputs and {inputs} "
                f"inputs, got {shapes}"
            )
        return cls((Weight * MAX_PARTS)(*parts), len(parts), outputs)


class Norms(NamedTuple):
    """Weights of a layer's norms, None where it has none: before and after attention and the MLP,
    [hidden_size] each; of query and key, [head_dim] each or, of all heads at once, [heads *
    head_dim]."""

    before_attention: torch.Tensor | None = None
    after_attention: torch.Tensor | None = None
    before_mlp: torch.Tensor | None = None
    after_mlp: torch.Tensor | None = None
    query: torch.Tensor | None = None
    key: torch.Tensor | None = None


class Form(NamedTuple):
    """The computation of a layer besides its weights."""

    epsilon: float  # of its norms
    activation: str = "silu"  # one of elementwise.ACTIVATIONS
    is_gated: bool = True  # whether its MLP has a gate
    turns: bool = True  # whether query and key are turned by their positions
    norms_all_heads: bool = False  # all queries share the mean of their norm, and so do all keys
    residual_scale: float = 1.0  # of what attention and MLP add


class Layer(ctypes.Structure):
    """The struct of the same name in decoder_layer.h."""

    _fields_ = [
        *fields(ctypes.c_void_p, "attention_norm", "after_attention_norm", "mlp_norm"),
        *fields(ctypes.c_void_p, "after_mlp_norm", "query_norm", "key_norm"),
        *fields(Linear, "qkv", "out", "gate_up", "down"),
        *fields(ctypes.c_int64, "activation", "turned", "norms_all_heads"),
        *fields(ctypes.c_float, "epsilon", "residual_scale"),
    ]

    @classmethod
    def of(
        cls,
        shape: LayerShape,
        norms: Norms,
        linears: Sequence[list[Weight]],
        form: Form,
        inputs: int | None = None,
    ) -> "Layer":
        """linears: query-key-value, output, gate-up (up alone where there is no gate) and down, the
        parts of each. inputs: of query-key-value, hidden_size where None. All must outlive it.
        Raises ValueError where one does not fit."""
        shape.check()
        hidden, attended, inner = (
            shape.hidden_size,
            shape.num_heads * shape.head_dim,
            shape.intermediate_size,
        )
        wanted = {
            "query, key and value": (shape.num_all_heads * shape.head_dim, inputs or hidden),
            "attention's output": (hidden, attended),
            "gate and up" if form.is_gated else "up": ((1 + form.is_gated) * inner, hidden),
            "down": (hidden, inner),
        }
        names = (
            "attention norm",
            "norm after attention",
            "MLP norm",
            "norm after the MLP",
            "query norm",
            "key norm",
        )
        heads = (shape.num_heads, shape.num_kv_heads) if form.norms_all_heads else (1, 1)
        sizes = *[(hidden,)] * 4, *((count * shape.head_dim,) for count in heads)
        if (norms.query is None) != (norms.key is None) or (
            norms.query is None and form.norms_all_heads
        ):
            raise ValueError("query and key must both have a norm, or neither")
        return cls(
            *map(optional_address, names, norms, sizes),
            *(
                Linear.of(name, parts, *wanted[name])
                for name, parts in zip(wanted, linears, strict=True)
            ),
            *(
                ACTIVATIONS.index(form.activation),
                shape.rotary_width if form.turns else 0,
                form.norms_all_heads,
            ),
            *(form.epsilon, form.residual_scale),
        )


class PlacedLayer(ctypes.Structure):
    """The struct of the same name in decoder_layer.h."""

    _fields_ = [
        ("layer", ctypes.POINTER(Layer)),
        *fields(ctypes.c_void_p, "keys", "values"),
        *fields(ctypes.c_int64, "window", "table"),
        ("scale", ctypes.c_float),
    ]

    @classmethod
    def of(
        cls,
        layer: Layer,
        shape: LayerShape,
        keys: torch.Tensor,
        values: torch.Tensor,
        window: int | None,
        scale: float,
        table: int = 0,
    ) -> "PlacedLayer":
        """keys, values: the layer's, [slots, num_kv_heads, max_len, head_dim]. table: the number of
        its rotary positions among those that a pass is given. All must outlive it. Raises
        ValueError where they do not fit."""
        cached = keys.shape[0], shape.num_kv_heads, keys.shape[2], shape.head_dim
        if window is not None and window < 1:
            raise ValueError(f"a window is {window} tokens, it must be 1 at least, or None")
        pointers = address("keys", keys, cached), address("values", values, cached)
        return cls(ctypes.pointer(layer), *pointers, window or 0, table, scale)


class PassFields(ctypes.Structure):
    """The struct Pass in decoder_layer.h."""

    _fields_ = [
        *fields(ctypes.c_void_p, "input", "output", "cosine", "sine"),
        *fields(ctypes.c_void_p, "normed", "heads", "attended", "gate_up", "gated", "rounded"),
        ("attention", Attention),
        *fields(ctypes.c_int64, "num_rows", "num_tables", "rotary_width", "table"),
    ]


class Pass:
    """Memory for the layers of one shape in one pass over num_rows tokens in tiles, see
    ragged_attention."""

    def __init__(
        self,
        shape: LayerShape,
        num_rows: int,
        keys: torch.Tensor,
        tiles: torch.Tensor,
        ancestors: torch.Tensor | None,
        num_tables: int = 1,
        widest: int = 0,
    ):
        """keys: of any layer of the cache. num_tables: of rotary positions, from which each layer
        reads one. widest: input of a linear outside the layer that this memory serves, too."""
        self.shape, self.num_tables = shape, num_tables
        normed = torch.empty(num_rows, shape.hidden_size)
        heads = torch.empty(num_rows, shape.num_all_heads, shape.head_dim)
        attended = torch.empty(num_rows, shape.num_heads, shape.head_dim)
        gate_up, gated = (torch.empty(num_rows, n * shape.intermediate_size) for n in (2, 1))
        new = Heads(
            *heads.transpose(0, 1).split([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads])
        )
        inputs = shape.hidden_size, shape.num_heads * shape.head_dim, shape.intermediate_size
        rounded = rounded_memory(num_rows, max(*inputs, widest))
        self._memory = normed, heads, attended, gate_up, gated, rounded
        attention = attention_of(
            new, CachedLayer(keys, keys), attended, tiles, 1.0, None, ancestors
        )
        self._read = tiles, ancestors
        pointers = (tensor.data_ptr() for tensor in self._memory)
        tables = num_tables, shape.rotary_width
        self.fields = PassFields(None, None, None, None, *pointers, attention, num_rows, *tables)

    def run(
        self,
        layers: Sequence[PlacedLayer],
        hidden_states: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
    ) -> torch.Tensor:
        """hidden_states [1, num_rows, hidden_size] through the layers, which lie in a ctypes array
        -> the same shape; new keys and values are written to the cache. cosine, sine: [1, num_rows,
        num_tables * rotary_width].
        """
        p = self.fields
        p.input = address("hidden_states", hidden_states, (1, p.num_rows, self.shape.hidden_size))
        factors = 1, p.num_rows, self.num_tables * self.shape.rotary_width
        p.cosine, p.sine = address("cosine", cosine, factors), address("sine", sine, factors)
        output = torch.empty_like(hidden_states)
        p.output = output.data_ptr()
        _kernels().decoder_layers(layers, len(layers), ctypes.byref(p))
        return output


@functools.cache
def _kernels() -> ctypes.CDLL:
    library = native.load_kernels(LIBRARY).library
    library.decoder_layers.argtypes = [
        ctypes.POINTER(PlacedLayer),
        ctypes.c_int64,
        ctypes.POINTER(PassFields),
    ]
    return library
