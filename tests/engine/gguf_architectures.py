"""Tiny GGUF files with random weights of every architecture whose files are read, with any keys.

Tensors and keys are written as llama.cpp's converter writes them, not by what reads them here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import numpy as np
from blocks import random_blocks
from torch import nn

from smartspec.engine.models.gguf_config import config_values, make_config
from smartspec.engine.models.gguf_file import GGUFFile, open_gguf
from smartspec.engine.models.gguf_model import read_gguf_model

LAYERS, HIDDEN, HEADS, KV_HEADS, FF, EXPERTS, CONTEXT = 2, 64, 4, 2, 96, 4, 512
VOCABULARY = [chr(character) for character in range(33, 127)] + ["ab", "cd"]
Shapes = dict[str, tuple[int, ...]]
Value = int | float | bool | str | list
TOKENIZER: dict[str, Value] = {
    "ggml.model": "gpt2",
    "ggml.pre": "gpt-2",
    "ggml.tokens": VOCABULARY,
    "ggml.token_type": [1] * len(VOCABULARY),
    "ggml.merges": ["a b", "c d"],
    "ggml.bos_token_id": 0,
    "ggml.eos_token_id": 0,
}


@dataclass(frozen=True)
class GGUFSpec:
    """shapes: of tensors, outermost dimension first, by name; keys: values by name, which are under
    the architecture's name unless they begin with "general."; tensors: those with given numbers."""

    architecture: str
    shapes: Shapes
    keys: dict[str, Value]
    tensors: dict[str, np.ndarray] = field(default_factory=dict)

    def having(self, **keys: Value) -> "GGUFSpec":
        """With these keys, an underscore of two for a dot; None takes one away."""
        return self.with_keys({name.replace("__", "."): value for name, value in keys.items()})

    def with_keys(self, keys: dict[str, Value | None]) -> "GGUFSpec":
        merged = self.keys | keys
        return replace(
            self, keys={name: value for name, value in merged.items() if value is not None}
        )

    def with_tensors(self, **tensors: np.ndarray) -> "GGUFSpec":
        return replace(
            self,
            tensors=self.tensors | {f"{name}.weight": numbers for name, numbers in tensors.items()},
        )

    def without(self, *parts: str) -> "GGUFSpec":
        """Without the tensors in whose names one of the parts is."""
        kept = {
            name: shape
            for name, shape in self.shapes.items()
            if not any(part in name for part in parts)
        }
        return replace(self, shapes=kept)

    def plus(self, shapes: Shapes) -> "GGUFSpec":
        return replace(self, shapes=self.shapes | shapes)


def write_gguf(
    path: Path,
    spec: GGUFSpec,
    seed: int = 0,
    tokenizer: Mapping[str, Value] = TOKENIZER,
    types: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    **splitting: int,
) -> Path:
    """tokenizer: keys of one; types: of tensors in blocks, by name; splitting: options of gguf's
    writer, which then writes parts with names of their own."""
    writer = gguf.GGUFWriter(path, spec.architecture, **splitting)
    for name, value in spec.keys.items():
        _add(writer, name if name.startswith("general.") else f"{spec.architecture}.{name}", value)
    for name, value in tokenizer.items():
        _add(writer, f"tokenizer.{name}", value)
    random = np.random.default_rng(seed)
    for number, (name, shape) in enumerate(spec.shapes.items()):
        if types and name in types:
            blocks = random_blocks(*shape, types[name], number).numpy()
            writer.add_tensor(name, blocks, raw_dtype=types[name])
        elif name not in spec.tensors:
            writer.add_tensor(name, _numbers(random, name, shape))
    for name, numbers in spec.tensors.items():
        writer.add_tensor(name, numbers.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def opened(folder: Path, spec: GGUFSpec) -> GGUFFile:
    return open_gguf(write_gguf(folder / "model.gguf", spec))


def read_stock_model(file: GGUFFile) -> nn.Module:
    """In fp32, as transformers computes it."""
    values, known = config_values(file)
    return read_gguf_model(file, make_config(values), "eager", known=known, keep_blocks=False)


def _add(writer: gguf.GGUFWriter, key: str, value: Value) -> None:
    kinds = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    kinds.get(type(value), writer.add_array)(key, value)


def _numbers(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name.endswith(".bias"):
        numbers = random.normal(0, 0.3, shape)
    elif "norm" in name:
        numbers = random.uniform(0.5, 1.5, shape)
    else:
        numbers = random.normal(0, 0.2, shape)
    return numbers.astype(np.float32)


def _outer(tied: bool = False, bias: bool = False) -> Shapes:
    vocab = len(VOCABULARY)
    shapes: Shapes = {"token_embd.weight": (vocab, HIDDEN), "output_norm.weight": (HIDDEN,)}
    shapes |= {} if tied else {"output.weight": (vocab, HIDDEN)}
    return shapes | ({"output_norm.bias": (HIDDEN,)} if bias else {})


def _layers(shapes: Shapes, count: int = LAYERS) -> Shapes:
    return {
        f"blk.{layer}.{name}": shape for layer in range(count) for name, shape in shapes.items()
    }


def _attention(head: int, *, biases: tuple[str, ...] = ()) -> Shapes:
    shapes: Shapes = {
        "attn_norm.weight": (HIDDEN,),
        "attn_q.weight": (HEADS * head, HIDDEN),
        "attn_k.weight": (KV_HEADS * head, HIDDEN),
        "attn_v.weight": (KV_HEADS * head, HIDDEN),
        "attn_output.weight": (HIDDEN, HEADS * head),
    }
    return shapes | {f"attn_{name}.bias": shapes[f"attn_{name}.weight"][:1] for name in biases}


def _gated(width: int = FF, biases: tuple[str, ...] = ()) -> Shapes:
    shapes: Shapes = {
        "ffn_norm.weight": (HIDDEN,),
        "ffn_gate.weight": (width, HIDDEN),
        "ffn_up.weight": (width, HIDDEN),
        "ffn_down.weight": (HIDDEN, width),
    }
    return shapes | {f"ffn_{name}.bias": shapes[f"ffn_{name}.weight"][:1] for name in biases}


def _experts(width: int) -> Shapes:
    return {
        "ffn_norm.weight": (HIDDEN,),
        "ffn_gate_inp.weight": (EXPERTS, HIDDEN),
        "ffn_gate_exps.weight": (EXPERTS, width, HIDDEN),
        "ffn_up_exps.weight": (EXPERTS, width, HIDDEN),
        "ffn_down_exps.weight": (EXPERTS, HIDDEN, width),
    }


def _keys(epsilon: str, layers: int = LAYERS) -> dict[str, Value]:
    """All of them unusual: an epsilon that shows, a base that no model has, heads in groups."""
    return {
        "context_length": CONTEXT,
        "block_count": layers,
        "embedding_length": HIDDEN,
        "feed_forward_length": FF,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        f"attention.{epsilon}": 0.05,
        "rope.freq_base": 777.0,
    }


RMS, NORM = "layer_norm_rms_epsilon", "layer_norm_epsilon"
# heads wider than their share of the hidden size
WIDE: dict[str, Value] = {"attention.key_length": 24, "attention.value_length": 24}
WIDE_NORMS: Shapes = dict.fromkeys(("attn_q_norm.weight", "attn_k_norm.weight"), (24,))
OF_EXPERTS: dict[str, Value] = {
    "expert_count": EXPERTS,
    "expert_used_count": 2,
    "expert_feed_forward_length": 40,
}


def llama() -> GGUFSpec:
    """Biases everywhere."""
    biases = _attention(24, biases=("q", "k", "v", "output")) | _gated(
        biases=("gate", "up", "down")
    )
    keys = _keys(RMS) | WIDE | {"rope.dimension_count": 24}
    return GGUFSpec("llama", _outer() | _layers(biases), keys)


def qwen2() -> GGUFSpec:
    return GGUFSpec(
        "qwen2", _outer() | _layers(_attention(16, biases=("q", "k", "v")) | _gated()), _keys(RMS)
    )


def qwen3() -> GGUFSpec:
    shapes = _attention(24) | WIDE_NORMS | _gated()
    return GGUFSpec("qwen3", _outer(tied=True) | _layers(shapes), _keys(RMS) | WIDE)


def qwen2moe() -> GGUFSpec:
    shared = {
        name.replace(".weight", "_shexp.weight"): shape
        for name, shape in _gated(56).items()
        if "norm" not in name
    }
    shapes = _attention(16, biases=("q", "k", "v")) | _experts(40) | shared
    shapes["ffn_gate_inp_shexp.weight"] = (HIDDEN,)
    keys = _keys(RMS) | OF_EXPERTS | {"expert_shared_feed_forward_length": 56}
    return GGUFSpec("qwen2moe", _outer() | _layers(shapes), keys)


def qwen3moe() -> GGUFSpec:
    shapes = _attention(24) | WIDE_NORMS | _experts(40)
    return GGUFSpec("qwen3moe", _outer() | _layers(shapes), _keys(RMS) | WIDE | OF_EXPERTS)


def phi3() -> GGUFSpec:
    """Queries, keys and values in one tensor, likewise gate and up; part of each head rotated."""
    shapes: Shapes = {
        "attn_norm.weight": (HIDDEN,),
        "attn_qkv.weight": (HIDDEN + 2 * KV_HEADS * 16, HIDDEN),
        "attn_output.weight": (HIDDEN, HIDDEN),
        "ffn_norm.weight": (HIDDEN,),
        "ffn_up.weight": (2 * FF, HIDDEN),
        "ffn_down.weight": (HIDDEN, FF),
    }
    return GGUFSpec("phi3", _outer() | _layers(shapes), _keys(RMS) | {"rope.dimension_count": 12})


def starcoder2() -> GGUFSpec:
    shapes = _attention(16, biases=("q", "k", "v", "output")) | _gated(biases=("up", "down"))
    del shapes["ffn_gate.weight"]
    shapes |= {"attn_norm.bias": (HIDDEN,), "ffn_norm.bias": (HIDDEN,)}
    return GGUFSpec("starcoder2", _outer(tied=True, bias=True) | _layers(shapes), _keys(NORM))


def gpt2() -> GGUFSpec:
    shapes: Shapes = {
        "attn_norm.weight": (HIDDEN,),
        "attn_qkv.weight": (3 * HIDDEN, HIDDEN),
        "attn_output.weight": (HIDDEN, HIDDEN),
        "ffn_norm.weight": (HIDDEN,),
        "ffn_up.weight": (FF, HIDDEN),
        "ffn_down.weight": (HIDDEN, FF),
    }
    shapes |= {name.replace(".weight", ".bias"): shape[:1] for name, shape in shapes.items()}
    keys = _keys(NORM)
    del keys["rope.freq_base"], keys["attention.head_count_kv"]
    return GGUFSpec(
        "gpt2",
        _outer(tied=True, bias=True)
        | {"position_embd.weight": (CONTEXT, HIDDEN)}
        | _layers(shapes),
        keys,
    )


def gemma3() -> GGUFSpec:
    """Seven layers, of which the sixth sees the whole text, the others a window shorter than it."""
    posts: Shapes = {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
    shapes = _attention(24) | WIDE_NORMS | _gated() | posts
    keys = WIDE | {
        "attention.sliding_window": 17,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 3.0,
    }
    return GGUFSpec("gemma3", _outer(tied=True) | _layers(shapes, 7), _keys(RMS, 7) | keys)


_MAKERS = (gemma3, gpt2, llama, phi3, qwen2, qwen2moe, qwen3, qwen3moe, starcoder2)
SPECS: dict[str, Callable[[], GGUFSpec]] = {make().architecture: make for make in _MAKERS}
