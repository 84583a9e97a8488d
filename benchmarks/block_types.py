"""Milliseconds of the linears of eight layers by type of block and by rows, and of the same in fp32.

    OMP_NUM_THREADS=2 python benchmarks/block_types.py --types BF16,Q4_1,Q4_K --rows 1,4,16,64,512

90 million random weights in layers of 1024 inputs, so that every type fits. Each type takes turns with fp32; the least
of several repetitions. roofline: what reading a type's weights takes at the bandwidth measured here. "rounded" is BF16
with inputs rounded to bfloat16, as after --dtype bfloat16.
"""

import time
from typing import Annotated

import torch
import typer
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from rich.console import Console
from rich.table import Table

from smartspec.engine.kernels.cpu.panel_linear import weight_of_panels
from smartspec.engine.kernels.cpu.quantized_linear import (
    BY_PANELS,
    Weight,
    describe_panels,
    linear,
    panel_width,
    to_block_panels,
)

SHAPES = [(1536, 1024), (1024, 1024), (5632, 1024), (1024, 2816)] * 8  # (outputs, inputs)
READ_BYTES = 1 << 28
REPETITIONS = 4


def main(
    types: Annotated[str, typer.Option(help="Types of blocks, separated by commas; rounded for BF16's other form.")] = (
        ",".join([*(kind.name for kind in BY_PANELS), "rounded"])
    ),
    rows: Annotated[str, typer.Option(help="Numbers of rows, separated by commas.")] = "1,2,4,8,16,32,64,128,256,512",
) -> None:
    """Print the table: "blocks / fp32", in milliseconds."""
    width = panel_width()
    floats = [torch.rand(-(-outputs // width), inputs, width) for outputs, inputs in SHAPES]
    in_fp32 = [weight_of_panels(panels, None, outputs) for panels, (outputs, _) in zip(floats, SHAPES, strict=True)]
    counts, bandwidth = [int(count) for count in rows.split(",")], _bandwidth()
    table = Table("type", "roofline", *map(str, counts), title=f"ms, blocks / fp32; {bandwidth / 1e9:.0f} GB/s")
    for name in types.split(","):
        panels, weights = _in_blocks("BF16" if name == "rounded" else name, rounds=name == "rounded")
        cells = ("{:.1f}/{:.1f}".format(*_best_ms([weights, in_fp32], count)) for count in counts)
        table.add_row(name, f"{1e3 * sum(p.nbytes for p in panels) / bandwidth:.1f}", *cells)
    Console(width=140).print(table)


def _in_blocks(name: str, *, rounds: bool) -> tuple[list[torch.Tensor], list[Weight]]:
    """Weights of random bits, and the memory they lie in."""
    kind = GGMLQuantizationType[name]
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    sizes = [(outputs, inputs // block_size * block_bytes) for outputs, inputs in SHAPES]
    panels = [to_block_panels(torch.randint(256, size, dtype=torch.uint8), kind) for size in sizes]
    pairs = zip(panels, SHAPES, strict=True)
    return panels, [describe_panels(memory, kind, outputs, rounds=rounds) for memory, (outputs, _) in pairs]


def _best_ms(sides: list[list[Weight]], num_rows: int) -> list[float]:
    inputs = {width: torch.rand(num_rows, width) for _, width in SHAPES}
    outputs = {width: torch.empty(num_rows, width) for width, _ in SHAPES}
    best = [float("inf")] * len(sides)
    for _ in range(REPETITIONS):
        for side, weights in enumerate(sides):
            began = time.perf_counter()
            for weight in weights:
                linear(inputs[weight.inputs], weight, outputs[weight.outputs])
            best[side] = min(best[side], 1e3 * (time.perf_counter() - began))
    return best


def _bandwidth() -> float:
    """Bytes a second that all threads read."""
    memory, best = torch.ones(READ_BYTES // 4), float("inf")
    for _ in range(5):
        began = time.perf_counter()
        memory.sum()
        best = min(best, time.perf_counter() - began)
    return READ_BYTES / best


if __name__ == "__main__":
    typer.run(main)
