"""Fused modules and linears in panels against the stock modules of transformers, on tiny random
models."""

import pytest
import torch
from compiled import need_kernels
from fused_models import VOCABULARY, stock_model
from torch import nn

from smartspec.engine.kernels.cpu.quantized_linear import LIBRARY
from smartspec.engine.models import fusion
from smartspec.engine.models.fusion import fuse
from smartspec.engine.models.linear import make_linear, pack_linears

# Attentions, MLPs and norms that fuse in each architecture: Qwen2 has biases, Qwen3 norms on query
# and key, Gemma norms of (1 + weight) and GELU, Phi-3 joined linears and OLMo 2 norms over all
# heads at once. Phi has other linears and LayerNorm, Cohere turns neighbours in a head.
EXPECTED = {
    "llama": (2, 2, 5),
    "mistral": (2, 2, 5),
    "qwen2": (2, 2, 5),
    "qwen3": (2, 2, 9),
    "gemma": (2, 2, 5),
    "phi": (0, 2, 0),
    "phi3": (2, 2, 5),
    "cohere": (0, 2, 0),
    "olmo2": (2, 2, 9),
}


def tiny_model(model_type: str, **changes: object) -> nn.Module:
    return stock_model(model_type, hidden_size=32, attention="sdpa", **changes)


def num_fused(model: nn.Module) -> tuple[int, ...]:
    """How many of each kind have been."""
    return tuple(fuse(model).values())


def logits_of(model: nn.Module, token_ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=token_ids, use_cache=False).logits


@pytest.mark.parametrize("model_type", EXPECTED)
def test_fused_and_packed_model_computes_the_same(model_type):
    model = tiny_model(model_type)
    token_ids = torch.randint(0, VOCABULARY, (2, 7))
    expected = logits_of(model, token_ids)
    assert num_fused(model) == EXPECTED[model_type]
    pack_linears(model)
    torch.testing.assert_close(logits_of(model, token_ids), expected, rtol=1e-4, atol=1e-5)
    need_kernels(LIBRARY)
    assert not any(type(module) is nn.Linear for module in model.modules())
    if EXPECTED[model_type][0]:
        left = {name for name, _ in model.named_parameters()}
        assert not any("proj" in name or "lm_head" in name for name in left), "they are freed"


def test_coarse_dtypes_fuse_within_their_rounding():
    model = tiny_model("llama").bfloat16()
    token_ids = torch.randint(0, VOCABULARY, (1, 7))
    expected = logits_of(model, token_ids).float()
    assert num_fused(model) == EXPECTED["llama"]
    assert pack_linears(model) == 0
    torch.testing.assert_close(logits_of(model, token_ids).float(), expected, rtol=0.05, atol=0.05)


def test_a_replacement_that_differs_is_not_kept(monkeypatch):
    model = tiny_model("llama")
    original = fusion.FusedMLP.forward
    monkeypatch.setattr(fusion.FusedMLP, "forward", lambda self, x: original(self, x) * (1 + 1e-4))
    assert num_fused(model) == (2, 0, 5)


def test_fusing_leaves_the_random_state_alone():
    model = tiny_model("llama")
    before = torch.get_rng_state()
    fuse(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_tied_embedding_stays_readable_after_packing():
    need_kernels(LIBRARY)
    model = tiny_model("llama", tie_word_embeddings=True)
    weight = model.model.embed_tokens.weight.clone()
    pack_linears(model)
    assert not isinstance(model.lm_head, nn.Linear)
    assert torch.equal(model.model.embed_tokens(torch.arange(VOCABULARY)), weight)


def test_make_linear_keeps_what_cannot_be_packed():
    linear = nn.Linear(8, 4, dtype=torch.float64)
    made = make_linear(linear.weight, linear.bias)
    assert type(made) is nn.Linear
    x = torch.randn(3, 8, dtype=torch.float64)
    assert torch.equal(made(x), linear(x))
