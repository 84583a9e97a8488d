"""Our element-wise kernels against torch in fp64: sizes with and without threads, with remainders, extreme values."""

import pytest
import torch
from compiled import need_kernels

from smartspec.engine.kernels.cpu.elementwise import LIBRARY, applies_to, gated_silu, rms_norm, rotate_heads


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


EPS = 2.0**-23  # twice the largest relative error of one fp32 operation


@pytest.fixture(autouse=True)
def kernels():
    need_kernels(LIBRARY)
    assert applies_to(torch.empty(0))
    assert not applies_to(torch.empty(0, dtype=torch.bfloat16))


def assert_within(actual: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor | float) -> None:
    """expected: in fp64. allowed: the largest error that rounding in fp32 may bring."""
    assert actual.dtype == torch.float32 and actual.shape == expected.shape
    assert ((actual - expected).abs() <= allowed).all()


@pytest.mark.parametrize("num_rows", [0, 1, 5, 400])
@pytest.mark.parametrize("size", [7, 64, 577])
@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e10])
def test_rms_norm(num_rows, size, scale):
    x, weight = random(2, num_rows, size) * scale, random(size, seed=1)
    expected = torch.nn.functional.rms_norm(x.double(), (size,), weight.double(), eps=1e-6)
    # Half of the relative error of a sum of `size` squares, and a few operations more.
    assert_within(rms_norm(x, weight, 1e-6), expected, EPS * (size / 4 + 8) * expected.abs())


@pytest.mark.parametrize("num_rows", [0, 1, 5, 400])
@pytest.mark.parametrize("size", [7, 64, 577])
def test_gated_silu(num_rows, size):
    gate_up = random(1, num_rows, 2 * size) * 5
    gate_up[..., : size // 2] *= 40  # exponentials of hundreds
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = torch.nn.functional.silu(gate) * up
    # The argument of an exponential is rounded in its own size; below 2^-126 there is nothing but 0.
    allowed = EPS * (8 + gate.abs()) * expected.abs() + 2.0**-126 * (1 + (gate * up).abs())
    assert_within(gated_silu(gate_up), expected, allowed)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("num_tokens", [1, 5, 300])
@pytest.mark.parametrize("head_dim", [6, 64])
def test_rotate_heads(batch, num_tokens, head_dim):
    heads, num_turned = random(batch, num_tokens, 5, head_dim), 3
    cosine, sine = random(1, num_tokens, head_dim, seed=1), random(1, num_tokens, head_dim, seed=2)
    low, high = heads.double().chunk(2, dim=-1)
    straight, across = heads * cosine.double().unsqueeze(2), torch.cat([-high, low], dim=-1) * sine.unsqueeze(2)
    is_turned = (torch.arange(5) < num_turned)[:, None]
    expected = torch.where(is_turned, straight + across, heads.double())
    allowed = torch.where(is_turned, 2 * EPS * (straight.abs() + across.abs()), 0.0)
    assert_within(rotate_heads(heads, num_turned, cosine, sine), expected, allowed)


def test_what_is_not_contiguous_is_read_right():
    x = random(64, 3, seed=3).T
    assert torch.equal(rms_norm(x, torch.ones(64), 1e-6), rms_norm(x.contiguous(), torch.ones(64), 1e-6))


@pytest.mark.parametrize("width", [4, 12])
def test_shapes_the_kernels_would_read_past_are_refused(width):
    heads, whole, other = random(1, 3, 2, 8), random(1, 3, 8), random(1, 3, width)
    for factors in ((other, whole), (whole, other), (whole[:, :2], whole), (whole.double(), whole)):
        with pytest.raises(ValueError, match=r"must be contiguous torch\.float32 of shape"):
            rotate_heads(heads, 2, *factors)
    with pytest.raises(ValueError, match="3 heads there to turn"):
        rotate_heads(heads, 3, whole, whole)
    with pytest.raises(ValueError, match="weight must be"):
        rms_norm(whole, random(width), 1e-6)
    with pytest.raises(ValueError, match="gate_up must be"):
        gated_silu(random(1, 2, 7))
