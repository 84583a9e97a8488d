"""Times of linears whose weights are in blocks, against the same in fp32: of a model, and by type
of block."""

from functools import partial

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from rich.console import Console
from rich.table import Table
from torch import nn

from lib.timing import WALL, bandwidth, in_turns
from smartspec.engine.kernels.cpu.panel_linear import weight_of_panels
from smartspec.engine.kernels.cpu.quantized_linear import (
    BY_PANELS,
    Weight,
    dequantize,
    describe_panels,
    linear,
    panel_width,
    to_block_panels,
)
from smartspec.engine.models.linear import make_linear
from smartspec.engine.models.load import load_model
from smartspec.engine.models.quantized import QuantizedLinear

SHAPES = [(1536, 1024), (1024, 1024), (5632, 1024), (1024, 2816)] * 8  # (outputs, inputs)
ROUNDED = "rounded"


@torch.inference_mode()
def of_model(model: str, quantization: str, dtype: str, rows: list[int]) -> None:
    """Print what all linears of a pass take. ValueError if no weight is in blocks."""
    loaded = load_model(model, device="cpu", quantization=quantization, dtype=dtype)
    blocks = [module for module in loaded.model.modules() if isinstance(module, QuantizedLinear)]
    if not blocks:
        raise ValueError(
            f"no weight of {model} is in blocks: name a GGUF file, or --quantization int8 or int4"
        )
    in_fp32 = [
        make_linear(torch.cat([dequantize(p.describe()) for p in linear.parts]))
        for linear in blocks
    ]
    num_bytes = sum(part.blocks.nbytes for linear in blocks for part in linear.parts)
    table = Table(
        "rows", "blocks, ms", "GB/s", "fp32, ms", "fp32 / blocks", title=f"{model}, all linears"
    )
    for num_rows in rows:
        inputs = {
            width: torch.ones(1, num_rows, width)
            for width in {linear.in_features for linear in blocks}
        }
        calls = [partial(_feed, side, inputs) for side in (blocks, in_fp32)]
        ours, theirs = in_turns(calls, repetitions=3, min_seconds=1.0)[..., WALL].min(axis=0)
        figures = (
            f"{ours * 1e3:.1f}",
            f"{num_bytes / ours / 1e9:.1f}",
            f"{theirs * 1e3:.1f}",
            f"{theirs / ours:.2f}",
        )
        table.add_row(str(num_rows), *figures)
    Console().print(table)


def _feed(linears: list[nn.Module], inputs: dict[int, torch.Tensor]) -> None:
    for each in linears:
        each(inputs[each.in_features])


def of_types(types: str | None, rows: list[int]) -> None:
    """Print "blocks / fp32" in milliseconds by type and number of rows. types: None for all."""
    width = panel_width()
    floats = [torch.rand(-(-outputs // width), inputs, width) for outputs, inputs in SHAPES]
    in_fp32 = [
        weight_of_panels(panels, None, outputs)
        for panels, (outputs, _) in zip(floats, SHAPES, strict=True)
    ]
    speed = bandwidth()
    table = Table(
        "type", "roofline", *map(str, rows), title=f"ms, blocks / fp32; {speed / 1e9:.0f} GB/s"
    )
    for name in types.split(",") if types else [*(kind.name for kind in BY_PANELS), ROUNDED]:
        panels, weights = _in_blocks("BF16" if name == ROUNDED else name, rounds=name == ROUNDED)
        cells = ("{:.1f}/{:.1f}".format(*_best_ms([weights, in_fp32], count)) for count in rows)
        table.add_row(name, f"{1e3 * sum(p.nbytes for p in panels) / speed:.1f}", *cells)
    Console(width=140).print(table)


def _in_blocks(name: str, *, rounds: bool) -> tuple[list[torch.Tensor], list[Weight]]:
    """Weights of random bits, and the memory they lie in."""
    kind = GGMLQuantizationType[name]
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    sizes = [(outputs, inputs // block_size * block_bytes) for outputs, inputs in SHAPES]
    panels = [to_block_panels(torch.randint(256, size, dtype=torch.uint8), kind) for size in sizes]
    pairs = zip(panels, SHAPES, strict=True)
    return panels, [
        describe_panels(memory, kind, outputs, rounds=rounds) for memory, (outputs, _) in pairs
    ]


def _best_ms(sides: list[list[Weight]], num_rows: int) -> list[float]:
    inputs = {width: torch.rand(num_rows, width) for _, width in SHAPES}
    outputs = {width: torch.empty(num_rows, width) for width, _ in SHAPES}

    def multiply(weights: list[Weight]) -> None:
        for weight in weights:
            linear(inputs[weight.inputs], weight, outputs[weight.outputs])

    seconds = in_turns([partial(multiply, weights) for weights in sides], repetitions=4)
    return (1e3 * seconds[..., WALL].min(axis=0)).tolist()
