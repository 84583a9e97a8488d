"""Tiny GGUF files that say unusual things, and how the logits of what is read here differ from
llama.cpp's."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf_architectures import (
    CONTEXT,
    HIDDEN,
    LAYERS,
    SPECS,
    VOCABULARY,
    GGUFSpec,
    Value,
    read_stock_model,
    write_gguf,
)
from llama_cpp import LlamaCpp

from smartspec.engine.models.gguf_file import open_gguf
from smartspec.engine.models.unsupported import UnsupportedModelError

TEXT = np.random.default_rng(1).integers(0, len(VOCABULARY), 150)
# Of the spread of the logits; what is not applied shows in their first digit. llama.cpp looks GELU
# up in half floats.
ROUNDING, GELU_ROUNDING = 2e-3, 2e-2
GELU = ("gemma3", "gpt2", "starcoder2")
Cases = dict[str, GGUFSpec]


@dataclass(frozen=True)
class Comparison:
    """Either error, the largest difference of logits in units of their spread, or refusal, what it
    names; alone: why llama.cpp has no logits, in which case the error is from those of the
    architecture's usual file."""

    error: float | None = None
    refusal: str | None = None
    alone: str | None = None


def tolerance(architecture: str) -> float:
    return GELU_ROUNDING if architecture in GELU else ROUNDING


def our_logits(path: Path) -> np.ndarray:
    """fp32 [n, vocabulary] of TEXT by the stock model; raises UnsupportedModelError."""
    model = read_stock_model(open_gguf(path)).eval()
    with torch.inference_mode():
        return model(torch.from_numpy(TEXT)[None], use_cache=False).logits[0].numpy()


def compare(peer: LlamaCpp, spec: GGUFSpec, folder: Path, usual: np.ndarray) -> Comparison:
    """usual: logits of the architecture's file with no change."""
    path = write_gguf(folder / "model.gguf", spec)
    try:
        logits = our_logits(path)
    except (UnsupportedModelError, OSError, ValueError) as error:  # the last: another shape
        return Comparison(refusal=_named(str(error)))
    expected = peer.logits(path, TEXT, len(VOCABULARY))
    if isinstance(expected, str):
        return Comparison(error=_difference(logits, usual), alone=expected)
    return Comparison(error=_difference(logits, expected))


def _difference(logits: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(logits - expected).max() / expected.std())


def _named(message: str) -> str:
    """The key, tensor or configuration that a refusal names."""
    found = re.search(
        r"key (\S+)|tensor '(\S+)'|no such (\S+ model)|lacks .*'(\S+)'|its (\S+) is ", message
    )
    assert found, f"no name in: {message}"
    return next(name for name in found.groups() if name)


def cases(architecture: str) -> Cases:
    spec = SPECS[architecture]()
    found = {"all keys unusual": spec, "the head tied or not": _other_head(spec)} | _EXTRA.get(
        architecture, dict
    )()
    if architecture != "gpt2":
        found |= {
            name: spec.with_keys(dict.fromkeys(_SCALING) | keys) for name, keys in _ROPES.items()
        }
    found["keys and values differ between layers"] = spec.having(attention__head_count_kv=[2, 1])
    found["a soft cap on attention"] = spec.having(attn_logit_softcapping=5.0)
    found["a scale of logits"] = spec.having(logit_scale=0.5)
    found["a scale of attention"] = spec.having(attention__scale=0.5)
    found["a tensor of no place"] = spec.plus({"blk.0.attn_q.scale": (1,)})
    return found


_SCALING = ("rope.scaling.type", "rope.scaling.factor")
_YARN: dict[str, Value] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
_ROPES: dict[str, dict[str, Value]] = {
    "rope linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0},
    "rope scaled by the old key": {"rope.scale_linear": 3.0},
    "rope scaled without a type": {"rope.scaling.factor": 3.0},
    "rope type none": {"rope.scaling.type": "none", "rope.scaling.factor": 3.0},
    "rope yarn": _YARN,
    "rope yarn of the whole context": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
    "rope yarn, betas": _YARN
    | {"rope.scaling.yarn_beta_fast": 8.0, "rope.scaling.yarn_beta_slow": 0.5},
    "rope yarn, attention factor": _YARN | {"rope.scaling.attn_factor": 1.3},
    "rope yarn, mixture": _YARN | {"rope.scaling.yarn_ext_factor": 0.5},
    "rope yarn, log multiplier": _YARN | {"rope.scaling.yarn_log_multiplier": 0.7},
    "rope attention factor": {"rope.scaling.attn_factor": 1.3},
    "rope linear, attention factor": {"rope.scaling.factor": 3.0, "rope.scaling.attn_factor": 1.3},
    "rope of 8 dimensions": {"rope.dimension_count": 8},
}


def _other_head(spec: GGUFSpec) -> GGUFSpec:
    """Tied where it is not, and the other way round."""
    head = {"output.weight": (len(VOCABULARY), HIDDEN)}
    others = {name: shape for name, shape in spec.shapes.items() if name not in head}
    return replace(spec, shapes=others if others != spec.shapes else spec.shapes | head)


def _factors(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(1.0, 6.0, count)


def _longrope(spec: GGUFSpec, count: int) -> Cases:
    """llama.cpp takes the long factors where its context, of 512 here, exceeds the original one;
    transformers where the text, of 150, does."""
    both = spec.with_tensors(
        rope_factors_short=_factors(count, 0), rope_factors_long=_factors(count, 1)
    )
    keys = dict(rope__scaling__type="longrope", rope__scaling__attn_factor=1.2)
    return {
        "longrope, short factors": both.having(
            rope__scaling__original_context_length=CONTEXT, **keys
        ),
        "longrope, long factors": both.having(rope__scaling__original_context_length=64, **keys),
        "longrope, one of its tensors missing": spec.with_tensors(
            rope_factors_short=_factors(count, 0)
        ).having(**keys),
    }


def _llama_cases() -> Cases:
    spec = SPECS["llama"]()
    frequencies = spec.with_tensors(rope_freqs=_factors(12, 0))
    narrow = {
        "attention.key_length": None,
        "attention.value_length": None,
        "rope.dimension_count": None,
    }
    return _longrope(spec, 12) | {
        "rope factors of frequencies": frequencies,
        "rope factors of frequencies, linear": frequencies.having(rope__scaling__factor=3.0),
        "rope factors of frequencies, yarn": frequencies.with_keys(_YARN),
        "rope factors too few": spec.with_tensors(rope_freqs=_factors(8, 0)),
        "no biases": spec.without(".bias"),
        "biases of queries alone": spec.without(
            "k.bias", "v.bias", "output.bias", "ffn_gate.bias", "ffn_up.bias"
        ),
        "biases in one layer": spec.without("blk.1.attn_q.bias", "blk.0.ffn_up.bias"),
        "heads as a list": spec.having(
            attention__head_count_kv=[2, 2], attention__head_count=[4, 4]
        ),
        "keys and values of other lengths": spec.having(attention__value_length=16),
        "heads that do not divide the hidden size": GGUFSpec(
            "llama", _llama_of_heads(3), spec.keys
        ).having(attention__head_count=3, attention__head_count_kv=3),
        "heads of their share, no keys of it": GGUFSpec(
            "llama", _llama_of_heads(4, 16), spec.keys
        ).with_keys(narrow | {"attention.head_count_kv": None}),
        "experts": spec.having(expert_count=4, expert_used_count=2),
        "a scale of the residual": spec.having(residual_scale=0.5),
        "a scale of embeddings": spec.having(embedding_scale=2.0),
        "a soft cap on logits": spec.having(final_logit_softcapping=5.0),
        "a sliding window": spec.having(attention__sliding_window=9),
        "clamped attention": spec.having(attention__clamp_kqv=0.1),
        "alibi": spec.having(attention__max_alibi_bias=8.0),
        "not causal": spec.having(attention__causal=False),
    }


def _llama_of_heads(heads: int, head: int = 24) -> dict[str, tuple[int, ...]]:
    shapes = dict(SPECS["llama"]().without(".bias").shapes)
    for layer in range(LAYERS):
        for name in ("q", "k", "v"):
            shapes[f"blk.{layer}.attn_{name}.weight"] = (heads * head, HIDDEN)
        shapes[f"blk.{layer}.attn_output.weight"] = (HIDDEN, heads * head)
    return shapes


def _gemma3_cases() -> Cases:
    spec = SPECS["gemma3"]()
    return {
        "every third layer whole": spec.having(attention__sliding_window_pattern=3),
        "windows as a list": spec.having(
            attention__sliding_window_pattern=[True, False, True, True, False, True, True]
        ),
        "a base for windows": spec.having(rope__freq_base_swa=99.0),
        "no window": spec.having(attention__sliding_window=None),
        "a soft cap on logits": spec.having(final_logit_softcapping=2.0),
        "62 layers, scaled as the 27B model": _deep_gemma3(),
    }


def _deep_gemma3() -> GGUFSpec:
    spec = SPECS["gemma3"]()
    layer = {
        name.removeprefix("blk.0."): shape
        for name, shape in spec.shapes.items()
        if name.startswith("blk.0.")
    }
    return spec.plus(
        {f"blk.{i}.{name}": shape for i in range(7, 62) for name, shape in layer.items()}
    ).having(block_count=62)


def _phi3_cases() -> Cases:
    spec = SPECS["phi3"]()
    return _longrope(spec, 6) | {
        "a window longer than the text": spec.having(attention__sliding_window=400)
    }


def _expert_cases(architecture: str) -> Cases:
    spec = SPECS[architecture]()
    return {
        "three experts used": spec.having(expert_used_count=3),
        "experts' weights scaled": spec.having(expert_weights_scale=0.5),
        "experts' weights by their norm": spec.having(expert_weights_norm=True),
        "experts' gate": spec.having(expert_gating_func=1),
        "experts in groups": spec.having(expert_group_count=2, expert_group_used_count=1),
    }


_EXTRA = {
    "llama": _llama_cases,
    "gemma3": _gemma3_cases,
    "phi3": _phi3_cases,
    "qwen2": lambda: {"no biases": SPECS["qwen2"]().without(".bias")},
    "qwen3": lambda: {"biases": _with_biases("qwen3", 24)},
    "qwen2moe": lambda: _expert_cases("qwen2moe"),
    "qwen3moe": lambda: _expert_cases("qwen3moe"),
}


def _with_biases(architecture: str, head: int) -> GGUFSpec:
    sizes = {"q": 4 * head, "k": 2 * head, "v": 2 * head, "output": HIDDEN}
    return SPECS[architecture]().plus(
        {
            f"blk.{layer}.attn_{name}.bias": (size,)
            for layer in range(LAYERS)
            for name, size in sizes.items()
        }
    )


def known_keys() -> list[str]:
    """Every key that the gguf package knows under an architecture's name, and one that it has
    forgotten."""
    groups = [value for value in vars(gguf.Keys).values() if isinstance(value, type)]
    groups += [
        value for group in groups for value in vars(group).values() if isinstance(value, type)
    ]
    texts = [text for group in groups for text in vars(group).values() if isinstance(text, str)]
    return sorted(
        {text.removeprefix("{arch}.") for text in texts if text.startswith("{arch}.")}
        | {"rope.scale_linear"}
    )
