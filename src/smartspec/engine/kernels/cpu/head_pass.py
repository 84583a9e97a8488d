"""A pass of a trained head in one call (head_pass.h), fp32 on CPU.

Why: a head is a thirtieth of its target. In torch's operators a pass over one row took 0.9 ms
beside 6 of the target, a third of it to read the weights.
"""

import ctypes
import functools

import numpy as np
import torch

from smartspec.engine.kernels.cpu import native
from smartspec.engine.kernels.cpu.decoder_layer import LIBRARY, Layer, Pass, PassFields
from smartspec.engine.kernels.cpu.quantized_linear import Weight
from smartspec.engine.kernels.cpu.ragged_attention import TILE_FIELDS
from smartspec.engine.kernels.cpu.shapes import (
    LayerShape,
    address,
    check_ids,
    fields,
    optional_address,
)


class Head(ctypes.Structure):
    """The struct of the same name in head_pass.h."""

    _fields_ = [
        ("layer", Layer),
        *fields(ctypes.c_void_p, "embed_norm", "final_norm", "all_taps_norm", "tap_norms"),
        *fields(Weight, "embedding", "combine", "lm_head"),
        ("target_ids", ctypes.c_void_p),
        *fields(ctypes.c_int64, "num_taps", "norm_before_residual", "norm_output"),
    ]

    @classmethod
    def of(
        cls,
        layer: Layer,
        shape: LayerShape,
        norms: dict[str, torch.Tensor | None],
        weights: dict[str, Weight],
        target_ids: torch.Tensor,
        num_taps: int,
        *,
        norm_before_residual: bool,
        norm_output: bool,
    ) -> "Head":
        """layer: of this shape, its query-key-value of twice the hidden size. norms: embed_norm and
        final_norm, [hidden_size], and all_taps_norm and tap_norms, [inputs of combine] or None.
        weights: embedding, combine, lm_head. target_ids: int64 [outputs of lm_head], of rows of the
        embedding. All must outlive it. Raises ValueError where one does not fit."""
        hidden, features = shape.hidden_size, weights["combine"].inputs
        wanted = {
            "embedding": (weights["embedding"].outputs, hidden),
            "combine": (hidden, features),
            "lm_head": (weights["lm_head"].outputs, hidden),
        }
        for name, (outputs, inputs) in wanted.items():
            if (weights[name].outputs, weights[name].inputs) != (outputs, inputs) or not outputs:
                raise ValueError(
                    f"{name} must be of shape ({outputs}, {inputs}), got ({weights[name].outputs}, "
                    f"{weights[name].inputs})"
                )
        if num_taps < 1 or features % num_taps:
            raise ValueError(f"{features} features are no {num_taps} taps of one size")
        pointer = address("target_ids", target_ids, (weights["lm_head"].outputs,), torch.int64)
        check_ids("target_ids", target_ids, weights["embedding"].outputs)
        return cls(
            layer,
            *(address(name, norms[name], (hidden,)) for name in ("embed_norm", "final_norm")),
            *(
                optional_address(name, norms[name], (features,))
                for name in ("all_taps_norm", "tap_norms")
            ),
            *(weights[name] for name in wanted),
            pointer,
            *(num_taps, norm_before_residual, norm_output),
        )


class _HeadPass(ctypes.Structure):
    """The struct HeadPass in head_pass.h."""

    _fields_ = [
        ("of_layer", PassFields),
        *fields(ctypes.c_void_p, "features", "earlier_rows", "token_ids", "cosine_of", "sine_of"),
        *fields(ctypes.c_void_p, "wanted_rows", "embedded", "taps", "joined", "hidden", "normed"),
        *fields(ctypes.c_void_p, "logits", "children", "chances", "entropy"),
        *fields(ctypes.c_int64, "num_wanted", "width"),
    ]


class HeadPass:
    """Memory for passes of a head over up to num_rows tokens.

    keys, values: its cache, [slots, num_kv_heads, max_len, head_dim]. features: [slots, max_len,
    feature_size]. cosine, sine: of every position, [max_len, head_dim]. All fp32; they must stay
    where they are. Raises ValueError where one does not fit.
    """

    def __init__(
        self,
        head: Head,
        shape: LayerShape,
        num_rows: int,
        keys: torch.Tensor,
        values: torch.Tensor,
        features: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
    ):
        self.num_rows, self._head = num_rows, head
        self._arguments = shape, (keys, values, features, cosine, sine)
        size, slots, max_len = shape.hidden_size, keys.shape[0], keys.shape[2]
        given = {
            "features": address("features", features, (slots, max_len, head.combine.inputs)),
            "cosine_of": address("cosine", cosine, (max_len, shape.head_dim)),
            "sine_of": address("sine", sine, (max_len, shape.head_dim)),
        }
        widths = {
            "embedded": size,
            "taps": features.shape[2],
            "joined": 2 * size,
            "hidden": size,
            "normed": size,
            "logits": head.lm_head.outputs,
        }
        memory = {name: torch.empty(num_rows, width) for name, width in widths.items()}
        widths = {"input": size, "output": size, "cosine": shape.head_dim, "sine": shape.head_dim}
        of_layer = {name: torch.empty(num_rows, width) for name, width in widths.items()}
        no_tiles = torch.empty(0, TILE_FIELDS, dtype=torch.int64)
        layer = Pass(shape, num_rows, keys, no_tiles, None, widest=max(features.shape[2], 2 * size))
        self._memory = memory, of_layer, layer
        self._hidden, self._features = memory["hidden"], given["features"]
        # of the last pass's wanted rows: what its output embedding has read
        self.normed = memory["normed"]
        self._pass = p = _HeadPass(
            layer.fields, **given, **{name: tensor.data_ptr() for name, tensor in memory.items()}
        )
        for name, tensor in of_layer.items():
            setattr(p.of_layer, name, tensor.data_ptr())
        attention = p.of_layer.attention
        attention.values = address("values", values, keys.shape)
        attention.scale = shape.head_dim**-0.5

    def larger(self, num_rows: int) -> "HeadPass":
        """Memory for so many tokens, which goes on where this ended."""
        made = HeadPass(self._head, self._arguments[0], num_rows, *self._arguments[1])
        made._hidden[: self.num_rows] = self._hidden
        return made

    def run(
        self,
        tiles: np.ndarray,
        ancestors: np.ndarray | None,
        token_ids: np.ndarray,
        earlier_rows: np.ndarray | None,
        wanted_rows: np.ndarray,
        width: int,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Run the pass; return the width likeliest tokens of each wanted row, int64 [n, width],
        their probabilities, fp32 [n, width], and the entropy of its distribution in nats, fp32 [n].

        tiles: int64 [m, 5], see attention.h; ancestors: uint64 [N] where there are trees.
        token_ids: int32 [N]. earlier_rows: int64 [N], the wanted rows of the pass before whose
        hidden states these read; None: the features of their places. wanted_rows: int64 [n]. Raises
        ValueError where a pass is larger than its memory, or of tokens that the embedding lacks.
        """
        if len(token_ids) > self.num_rows:
            raise ValueError(f"a pass over {len(token_ids)} tokens in memory for {self.num_rows}")
        of_tokens = _address(token_ids, np.int32)
        # negative ones are large so
        if token_ids.view(np.uint32).max(initial=0) >= self._head.embedding.outputs:
            raise ValueError(
                f"token ids must lie in 0 to {self._head.embedding.outputs - 1}, got "
                f"{token_ids.tolist()}"
            )
        p, attention, num_wanted = self._pass, self._pass.of_layer.attention, len(wanted_rows)
        children = np.empty((num_wanted, width), dtype=np.int64)
        chances, entropy = (
            np.empty((num_wanted, width), dtype=np.float32),
            np.empty(num_wanted, dtype=np.float32),
        )
        attention.tiles, attention.num_tiles = _address(tiles, np.int64), len(tiles)
        attention.ancestors = None if ancestors is None else _address(ancestors, np.uint64)
        p.of_layer.num_rows, p.num_wanted, p.width = len(token_ids), num_wanted, width
        p.features = self._features if earlier_rows is None else None
        p.earlier_rows = None if earlier_rows is None else _address(earlier_rows, np.int64)
        p.token_ids, p.wanted_rows = of_tokens, _address(wanted_rows, np.int64)
        p.children, p.chances, p.entropy = (
            children.ctypes.data,
            chances.ctypes.data,
            entropy.ctypes.data,
        )
        _kernels().head_pass(ctypes.byref(self._head), ctypes.byref(p))
        return children, chances, entropy


def _address(array: np.ndarray, dtype: type) -> int:
    """The kernel reads memory as if it were of this type and contiguous."""
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise ValueError(
            f"must be contiguous {np.dtype(dtype)}, got {array.dtype} of shape {array.shape}"
        )
    return array.ctypes.data


@functools.cache
def _kernels() -> ctypes.CDLL:
    library = native.load_kernels(LIBRARY).library
    library.head_pass.argtypes = [ctypes.POINTER(Head), ctypes.POINTER(_HeadPass)]
    return library
