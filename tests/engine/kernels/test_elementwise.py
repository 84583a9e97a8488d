"""Our element-wise kernels against torch in fp64: sizes with and without threads, with remainders,
extreme values."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from compiled import need_kernels

from smartspec.engine.kernels.cpu.elementwise import (
    ACTIVATIONS,
    LIBRARY,
    activate,
    applies_to,
    rms_norm,
    rotate_heads,
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


EPS = 2.0**-23  # twice the largest relative error of one fp32 operation


@pytest.fixture(autouse=True)
def kernels():
    need_kernels(LIBRARY)
    assert applies_to(torch.empty(0))
    assert not applies_to(torch.empty(0, dtype=torch.bfloat16))


def assert_within(
    actual: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor | float
) -> None:
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


IN_TORCH = {
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu_squared": lambda x: F.relu(x).square(),
}


@pytest.mark.parametrize("num_rows", [0, 1, 5, 400])
@pytest.mark.parametrize("size", [7, 64, 577])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_with_and_without_a_gate(num_rows, size, activation):
    gate_up = random(1, num_rows, 2 * size) * 5
    gate_up[..., : size // 2] *= 40  # exponentials of hundreds
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = IN_TORCH[activation](gate)
    # The argument of an exponential is rounded in its own size, which shows as far as the share it
    # is in is not 1; below 2^-126 there is nothing but 0. The normal distribution's polynomial and
    # torch's 1 + tanh round absolutely.
    size_of_argument = {"silu": gate.abs(), "gelu_tanh": gate.abs() * (1 + gate.square())}.get(
        activation, 0 * gate
    )
    argument = size_of_argument * (1 - expected / gate).abs()
    absolute = {"gelu": 1e-7, "gelu_tanh": 2.0**-52}.get(activation, 0.0) * gate.abs()
    allowed = EPS * (8 + argument) * expected.abs() + absolute + 2.0**-126 * (1 + gate.abs())
    assert_within(activate(gate_up[..., :size], activation, is_gated=False), expected, allowed)
    allowed = (allowed + EPS * expected.abs()) * up.abs()
    assert_within(activate(gate_up, activation, is_gated=True), expected * up, allowed)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("num_tokens", [1, 5, 300])
@pytest.mark.parametrize(("head_dim", "width"), [(6, 6), (64, 64), (64, 24), (64, 0)])
def test_rotate_heads(batch, num_tokens, head_dim, width):
    heads, num_turned = random(batch, num_tokens, 5, head_dim), 3
    cosine, sine = random(1, num_tokens, width, seed=1), random(1, num_tokens, width, seed=2)
    low, high = heads[..., :width].double().chunk(2, dim=-1)
    rest = heads[..., width:].double()
    straight = torch.cat([heads[..., :width] * cosine.double().unsqueeze(2), rest], dim=-1)
    across = torch.cat([torch.cat([-high, low], dim=-1) * sine.unsqueeze(2), 0 * rest], dim=-1)
    is_turned = (torch.arange(5) < num_turned)[:, None] & (torch.arange(head_dim) < width)
    expected = torch.where(is_turned, straight + across, heads.double())
    allowed = torch.where(is_turned, 2 * EPS * (straight.abs() + across.abs()), 0.0)
    assert_within(rotate_heads(heads, num_turned, cosine, sine), expected, allowed)


def test_what_is_not_contiguous_is_read_right():
    x = random(64, 3, seed=3).T
    assert torch.equal(
        rms_norm(x, torch.ones(64), 1e-6), rms_norm(x.contiguous(), torch.ones(64), 1e-6)
    )


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
        activate(random(1, 2, 7), "silu", is_gated=True)
