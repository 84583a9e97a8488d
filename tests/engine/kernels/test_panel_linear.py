"""Linear layers on weights in panels: against fp64, and each row by itself."""

import pytest
import torch
from compiled import need_kernels
from torch import nn

from smartspec.engine.kernels.cpu.quantized_linear import LIBRARY
from smartspec.engine.models.linear import make_linear
from smartspec.engine.models.panel_linear import PanelLinear

ROUNDING = 2.0**-24  # largest relative error of one fp32 operation


@pytest.fixture(autouse=True)
def kernels():
    need_kernels(LIBRARY)


def make(num_outputs: int, num_inputs: int, bias: bool = True) -> tuple[nn.Linear, PanelLinear]:
    torch.manual_seed(num_outputs)
    linear = nn.Linear(num_inputs, num_outputs, bias=bias).requires_grad_(False)
    packed = make_linear(linear.weight, linear.bias)
    assert isinstance(packed, PanelLinear)
    return linear, packed


# Outputs around the width of a panel and of several, inputs around what is multiplied at once.
@pytest.mark.parametrize(
    ("num_outputs", "num_inputs"), [(1, 1), (7, 513), (16, 40), (33, 577), (161, 1030)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_it_computes_the_linear_layer(num_outputs, num_inputs, bias):
    linear, packed = make(num_outputs, num_inputs, bias)
    for num_rows in (0, 1, 2, 5, 6, 13, 97, 200):
        x = torch.randn(2, num_rows, num_inputs)
        expected = linear.double()(x.double())
        linear.float()
        # A sum of n terms in fp32: n roundings of at most the sum of magnitudes.
        allowed = ROUNDING * (num_inputs + 2) * (x.abs() @ linear.weight.abs().T + 1.0)
        assert ((packed(x) - expected).abs() <= allowed).all()


def test_a_row_gets_the_same_bits_in_every_batch():
    _, packed = make(83, 601)
    x = torch.randn(1, 110, 601)
    together = packed(x)
    for rows in (slice(0, 1), slice(109, 110), slice(3, 5), slice(7, 20), slice(2, 100)):
        assert torch.equal(packed(x[:, rows]), together[:, rows])


def test_what_is_not_finite_stays_in_its_row():
    _, packed = make(40, 64)
    x = torch.randn(1, 9, 64)
    clean = packed(x)
    x[0, 4, 10] = torch.nan
    x[0, 6, 10] = torch.inf
    rows = [0, 1, 2, 3, 5, 7, 8]
    assert torch.equal(packed(x)[:, rows], clean[:, rows])
    assert packed(x)[0, 4].isnan().all()


def test_what_is_not_contiguous_is_read_right_and_what_does_not_fit_is_refused():
    _, packed = make(8, 12)
    x = torch.randn(1, 12, 5).mT
    assert torch.equal(packed(x), packed(x.contiguous()))
    with pytest.raises(
        ValueError, match=r"x must be fp32 of width 12, got torch\.float32 of shape"
    ):
        packed(torch.randn(1, 3, 13))
    with pytest.raises(ValueError, match=r"x must be fp32 of width 12, got torch\.float64"):
        packed(torch.randn(1, 3, 12).double())
