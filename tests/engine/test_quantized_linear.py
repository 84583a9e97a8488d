"""Our kernels for weights in GGUF's blocks: the weights are those of the gguf package, the products those of fp64."""

import functools
import platform
import shlex

import gguf
import numpy as np
import pytest
import torch
from blocks import random_blocks
from compiled import need_kernels

from smartspec.engine.kernels.cpu import native, quantized_linear
from smartspec.engine.kernels.cpu.quantized_linear import BLOCK_TYPES, LIBRARY, dequantize, describe

TYPES = sorted(BLOCK_TYPES)


@pytest.fixture(autouse=True, scope="module", params=["native", "generic"])
def kernels(request: pytest.FixtureRequest):
    """For this processor, and for one without wide vectors or conversions of 16-bit floats."""
    need_kernels(LIBRARY)
    if request.param == "native":
        yield
        return
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the kernels for this processor are the generic ones")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", f"{shlex.join(native.compiler_command())} -march=x86-64")
        patch.setattr(quantized_linear, "load_kernels", native.load_kernels.__wrapped__)
        patch.setattr(quantized_linear, "_kernels", functools.cache(quantized_linear._kernels.__wrapped__))
        yield


def block_size(block_type: gguf.GGMLQuantizationType) -> int:
    return gguf.GGML_QUANT_SIZES[block_type][0]


@pytest.mark.parametrize("block_type", TYPES, ids=lambda t: t.name)
def test_weights_are_exactly_those_of_gguf(block_type):
    blocks = random_blocks(7, {1: 37, 32: 160, 256: 1280}[block_size(block_type)], block_type)
    expected = reference(blocks, block_type)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(dequantize(blocks, block_type).numpy(), expected)


def reference(blocks: torch.Tensor, block_type: gguf.GGMLQuantizationType) -> np.ndarray:
    raw = blocks.numpy().view(np.float16) if block_type.name == "F16" else blocks.numpy()
    return gguf.dequantize(raw, block_type).astype(np.float32)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 8, 13, 64])
@pytest.mark.parametrize("block_type", TYPES, ids=lambda t: t.name)
def test_products_are_those_of_fp64_but_for_rounding(block_type, num_rows: int):
    outputs, inputs = 13, {1: 37, 32: 1056 + 32, 256: 1280}[block_size(block_type)]  # more than a chunk, odd tiles
    blocks, random = random_blocks(outputs, inputs, block_type), np.random.default_rng(1)
    x = random.standard_normal((num_rows, inputs)).astype(np.float32)
    bias = random.standard_normal(outputs).astype(np.float32)
    weights = reference(blocks, block_type).astype(np.float64)
    output = torch.full((num_rows, outputs + 3), 7.0)
    weight = describe(blocks, block_type, torch.from_numpy(bias))
    quantized_linear.linear(torch.from_numpy(x), weight, output, column=2)
    # n products and as many sums, each rounded once: n * 2^-24 of the sum of magnitudes, twice.
    bound = 2 * (inputs + 1) * 2.0**-24 * (np.abs(x) @ np.abs(weights).T + np.abs(bias))
    assert (np.abs(output.numpy()[:, 2:-1] - (x @ weights.T + bias)) <= bound).all()
    assert (output[:, :2] == 7).all() and (output[:, -1] == 7).all(), "columns of others are not touched"


def test_wrong_shapes_are_named():
    q4 = gguf.GGMLQuantizationType.Q4_1
    with pytest.raises(ValueError, match="Q2_K"):
        describe(torch.zeros(2, 84, dtype=torch.uint8), gguf.GGMLQuantizationType.Q2_K)
    with pytest.raises(ValueError, match=r"n \* 20"):
        describe(torch.zeros(2, 30, dtype=torch.uint8), q4)
    weight = describe(random_blocks(4, 64, q4), q4)
    with pytest.raises(ValueError, match="x must be"):
        quantized_linear.linear(torch.zeros(1, 32), weight, torch.zeros(1, 4))
    with pytest.raises(ValueError, match="output must be"):
        quantized_linear.linear(torch.zeros(1, 64), weight, torch.zeros(1, 5), column=2)
