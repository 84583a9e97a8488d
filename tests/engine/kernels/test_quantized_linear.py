"""Our kernels for weights in GGUF's blocks: the weights are those of the gguf package, the products
those of fp64."""

import gguf
import numpy as np
import pytest
import torch
from blocks import random_blocks
from compiled import need_kernels, use_processor

from smartspec.engine.kernels.cpu import quantized_linear
from smartspec.engine.kernels.cpu.panel_linear import panel_linear, to_panels, weight_of_panels
from smartspec.engine.kernels.cpu.quantized_linear import (
    BLOCK_TYPES,
    BY_PANELS,
    LIBRARY,
    dequantize,
    describe,
    describe_panels,
    to_block_panels,
)

TYPES = sorted(BLOCK_TYPES)
BOTH_WAYS = [
    (kind, way)
    for way in ("rows", "panels")
    for kind in TYPES
    if way == "rows" or kind in BY_PANELS
]
NAMES = [f"{kind.name}-{way}" for kind, way in BOTH_WAYS]


@pytest.fixture(autouse=True, scope="module", params=["native", "generic"])
def kernels(request: pytest.FixtureRequest):
    """For this processor, and for one without wide vectors or conversions of 16-bit floats."""
    need_kernels(LIBRARY)
    if request.param == "native":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        use_processor(patch, "x86-64")
        yield


def num_inputs(block_type: gguf.GGMLQuantizationType, way: str, of_blocks: int) -> int:
    """Plain numbers need no whole groups where they are rows; of_blocks: for blocks of 32."""
    return {1: 37 if way == "rows" else of_blocks, 32: of_blocks, 256: 1280}[
        gguf.GGML_QUANT_SIZES[block_type][0]
    ]


@pytest.mark.parametrize(("block_type", "way"), BOTH_WAYS, ids=NAMES)
def test_weights_are_exactly_those_of_gguf(block_type, way):
    blocks = random_blocks(39, num_inputs(block_type, way, 160), block_type)
    expected = reference(blocks, block_type)
    assert np.isfinite(expected).all()
    weight, memory = laid_out(blocks, block_type, way)
    apart = (
        4 * len(blocks) * 1280 // 256
        if way == "panels" and block_type.name in ("Q4_K", "Q5_K")
        else 0
    )
    assert memory.nbytes == (
        blocks.nbytes if way == "rows" else (blocks.nbytes + apart) // 39 * memory_rows(39)
    )
    np.testing.assert_array_equal(dequantize(weight).numpy(), expected)
    some = torch.tensor([38, 0, 17, 17])
    np.testing.assert_array_equal(dequantize(weight, some).numpy(), expected[some])


def memory_rows(outputs: int) -> int:
    return -(-outputs // quantized_linear.panel_width()) * quantized_linear.panel_width()


@pytest.mark.parametrize("block_type", sorted(BY_PANELS), ids=lambda t: t.name)
def test_blocks_by_panels_give_the_bits_of_fp32_panels_in_every_batch(request, block_type):
    if "generic" in request.node.name:
        pytest.skip("without multiply-add instructions the compiler may reorder sums")
    inputs = num_inputs(block_type, "panels", 640)
    weight, _memory = laid_out(random_blocks(70, inputs, block_type), block_type, "panels")
    panels = to_panels(dequantize(weight))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((300, inputs)).astype(np.float32))
    expected = panel_linear(x, weight_of_panels(panels, None, 70))
    for num_rows in (1, 2, 7, 12, 13, 29, 60, 300):
        torch.testing.assert_close(
            panel_linear(x[-num_rows:], weight), expected[-num_rows:], rtol=0, atol=0
        )


@pytest.mark.parametrize("inputs", [32, 608, 4128])
def test_inputs_rounded_to_bfloat16(inputs):
    """Products of the rounded inputs but for fp32 sums, and a row's bits whatever else is in the
    batch."""
    if not quantized_linear.can_round(gguf.GGMLQuantizationType.BF16, inputs):
        pytest.skip("this processor does not multiply bfloat16")
    blocks = random_blocks(70, inputs, gguf.GGMLQuantizationType.BF16)
    bias = torch.from_numpy(np.random.default_rng(1).standard_normal(70).astype(np.float32))
    memory = to_block_panels(blocks, gguf.GGMLQuantizationType.BF16)
    weight = describe_panels(memory, gguf.GGMLQuantizationType.BF16, 70, bias, rounds=1)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((60, inputs)).astype(np.float32))
    weights, rounded = dequantize(weight).double(), x.bfloat16().double()
    output = panel_linear(x, weight)
    bound = 2 * (inputs + 1) * 2.0**-24 * (rounded.abs() @ weights.abs().T + bias.abs())
    assert ((output.double() - (rounded @ weights.T + bias)).abs() <= bound).all()
    for num_rows in (1, 2, 7, 12, 13, 31, 59):
        torch.testing.assert_close(
            panel_linear(x[-num_rows:], weight), output[-num_rows:], rtol=0, atol=0
        )


def laid_out(blocks: torch.Tensor, block_type, way: str, bias: torch.Tensor | None = None):
    """The weight for the kernels, and the tensor it lies in."""
    if way == "rows":
        return describe(blocks, block_type, bias), blocks
    panels = to_block_panels(blocks, block_type)
    return describe_panels(panels, block_type, len(blocks), bias), panels


def reference(blocks: torch.Tensor, block_type: gguf.GGMLQuantizationType) -> np.ndarray:
    raw = blocks.numpy().view(np.float16) if block_type.name == "F16" else blocks.numpy()
    return gguf.dequantize(raw, block_type).astype(np.float32)


@pytest.mark.parametrize("num_rows", [1, 3, 5, 13, 64])
@pytest.mark.parametrize(("block_type", "way"), BOTH_WAYS, ids=NAMES)
def test_products_are_those_of_fp64_but_for_rounding(block_type, way, num_rows):
    # more than a chunk and a panel, odd tiles
    outputs, inputs = 37, num_inputs(block_type, way, 1056 + 32)
    blocks, random = random_blocks(outputs, inputs, block_type), np.random.default_rng(1)
    x = random.standard_normal((num_rows, inputs)).astype(np.float32)
    bias = random.standard_normal(outputs).astype(np.float32)
    weights = reference(blocks, block_type).astype(np.float64)
    output = torch.full((num_rows, outputs + 3), 7.0)
    weight, _memory = laid_out(blocks, block_type, way, torch.from_numpy(bias))
    quantized_linear.linear(torch.from_numpy(x), weight, output, column=2)
    # n products and as many sums, each rounded once: n * 2^-24 of the sum of magnitudes, twice.
    bound = 2 * (inputs + 1) * 2.0**-24 * (np.abs(x) @ np.abs(weights).T + np.abs(bias))
    assert (np.abs(output.numpy()[:, 2:-1] - (x @ weights.T + bias)) <= bound).all()
    assert (output[:, :2] == 7).all() and (output[:, -1] == 7).all(), (
        "columns of others are not touched"
    )


def test_wrong_shapes_are_named():
    q4 = gguf.GGMLQuantizationType.Q4_1
    with pytest.raises(ValueError, match="Q2_K"):
        describe(torch.zeros(2, 84, dtype=torch.uint8), gguf.GGMLQuantizationType.Q2_K)
    with pytest.raises(ValueError, match=r"n \* 20"):
        describe(torch.zeros(2, 30, dtype=torch.uint8), q4)
    weight = describe(random_blocks(4, 64, q4), q4)
    with pytest.raises(IndexError, match="rows must lie in 0 to 3, got 1 to 4"):
        dequantize(weight, torch.tensor([1, 4]))
    with pytest.raises(ValueError, match="x must be"):
        quantized_linear.linear(torch.zeros(1, 32), weight, torch.zeros(1, 4))
    with pytest.raises(ValueError, match="output must be"):
        quantized_linear.linear(torch.zeros(1, 64), weight, torch.zeros(1, 5), column=2)
