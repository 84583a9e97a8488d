"""Our element-wise kernels against torch, at sizes with and without threads, with remainders and extreme values."""

import pytest
import torch

from smartspec.engine.kernels.cpu.elementwise import applies_to, gated_silu, rms_norm, rotate_heads


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def kernels():
    assert applies_to(torch.empty(0)), "these tests need a C compiler"
    assert not applies_to(torch.empty(0, dtype=torch.bfloat16))


@pytest.mark.parametrize("num_rows", [0, 1, 5, 400])
@pytest.mark.parametrize("size", [7, 64, 577])
@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e10])
def test_rms_norm(num_rows, size, scale):
    x, weight = random(2, num_rows, size) * scale, random(size, seed=1)
    expected = torch.nn.functional.rms_norm(x, (size,), weight, eps=1e-6)
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_rows", [0, 1, 5, 400])
@pytest.mark.parametrize("size", [7, 64, 577])
def test_gated_silu(num_rows, size):
    gate_up = random(1, num_rows, 2 * size) * 5
    gate_up[..., : size // 2] *= 40  # exponentials of hundreds
    gate, up = gate_up.chunk(2, dim=-1)
    torch.testing.assert_close(gated_silu(gate_up), torch.nn.functional.silu(gate) * up, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("num_tokens", [1, 5, 300])
@pytest.mark.parametrize("head_dim", [6, 64])
def test_rotate_heads(batch, num_tokens, head_dim):
    heads, num_turned = random(batch, num_tokens, 5, head_dim), 3
    cosine, sine = random(1, num_tokens, head_dim, seed=1), random(1, num_tokens, head_dim, seed=2)
    low, high = heads.chunk(2, dim=-1)
    turned = heads * cosine.unsqueeze(2) + torch.cat([-high, low], dim=-1) * sine.unsqueeze(2)
    expected = torch.cat([turned[:, :, :num_turned], heads[:, :, num_turned:]], dim=2)
    torch.testing.assert_close(rotate_heads(heads, num_turned, cosine, sine), expected, rtol=1e-5, atol=1e-6)


def test_what_is_not_contiguous_is_read_right():
    x = random(64, 3, seed=3).T
    expected = torch.nn.functional.rms_norm(x, (64,), torch.ones(64), eps=1e-6)
    torch.testing.assert_close(rms_norm(x, torch.ones(64), 1e-6), expected)
