"""Tiny random models of several architectures with their modules fused, and passes for them."""

from collections.abc import Iterator

import numpy as np
from tiny_models import VOCABULARY, as_loaded, tiny_model
from torch import nn

from smartspec.engine.attention.probe import probe
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.attention.tree_mask import tree_mask
from smartspec.engine.models.fused_pass import FusedPass
from smartspec.engine.models.fusion import fuse
from smartspec.engine.models.linear import pack_linears
from smartspec.engine.models.load_check import layer_windows
from smartspec.engine.models.model_runner import ModelRunner

SIZES = {
    "hidden_size": 36,
    "intermediate_size": 51,
    "head_dim": 8,
    "pad_token_id": None,
    "initializer_range": 0.3,
    "sliding_window": 7,  # of those that have one
}
FULL, SLIDING = "full_attention", "sliding_attention"
ROPE = {"rope_type": "default", "rope_theta": 777.0}
# Every form of a layer that our kernel computes besides Llama's: (model type, changes), by what is
# new in it.
FORMS: dict[str, tuple[str, dict[str, object]]] = {
    "norms that count from 1, GELU by tanh": ("gemma", {}),
    "norms after attention and MLP, two bases": (
        "gemma3_text",
        {
            "layer_types": [SLIDING, FULL],
            "rope_parameters": {FULL: ROPE | {"rope_theta": 33.0}, SLIDING: ROPE},
            "query_pre_attn_scalar": 16,
        },
    ),
    "norms after only, of all heads at once": ("olmo2", {}),
    "norms after only, of each head, layers without positions": (
        "exaone4",
        {"layer_types": [SLIDING, FULL]},
    ),
    "joined linears": ("phi3", {"hidden_size": 32}),
    "half of a head turned": (
        "phi3",
        {"hidden_size": 32, "rope_parameters": ROPE | {"partial_rotary_factor": 0.5}},
    ),
    "a layer without positions": ("smollm3", {"no_rope_layers": [1, 0]}),
    "scaled residual, embeddings and logits": (
        "granite",
        {"residual_multiplier": 0.4, "embedding_multiplier": 3.0, "logits_scaling": 5.0},
    ),
    "no gate, squared ReLU": ("arcee", {}),
    "exact GELU": ("llama", {"hidden_act": "gelu"}),
}


def stock_model(model_type: str, **changes: object) -> nn.Module:
    model = tiny_model(model_type, **SIZES | changes)
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:  # all ones or zeros as made
            parameter.normal_(0.5, 0.5)
    return model


def prepare(model: nn.Module) -> nn.Module:
    fuse(model)
    pack_linears(model)
    return model


def fused_model(model_type: str, **changes: object) -> nn.Module:
    return prepare(stock_model(model_type, **changes))


def runner_of(
    model: nn.Module, fused_pass: FusedPass | None = None, **options: object
) -> ModelRunner:
    """options: of ModelRunner."""
    windows = layer_windows(probe(model)[1])
    loaded = as_loaded(model, windows=windows, fused_pass=fused_pass)
    return ModelRunner(loaded, **{"num_slots": 4, "max_len": 64} | options)


def random_passes(seed: int = 0) -> Iterator[list[Segment]]:
    """Chunks of prompts, single tokens, drafts that are rolled back and trees, of four requests."""
    random = np.random.default_rng(seed)
    starts = [0] * 4
    for _ in range(6):
        segments = []
        for slot in random.permutation(4)[: random.integers(1, 5)].tolist():
            tokens = random.integers(0, VOCABULARY, random.choice([1, 2, 5, 9])).astype(np.int32)
            parents = np.array([int(random.integers(-1, token)) for token in range(len(tokens))])
            tree = tree_mask(parents, starts[slot]) if random.random() < 0.5 else None
            segments.append(
                Segment(slot, starts[slot], tokens, int(random.integers(0, len(tokens) + 1)), tree)
            )
            starts[slot] += int(random.integers(1, len(tokens) + 1))
        yield segments
