"""Milliseconds that all linears of one pass take, by rows: weights as they are served against the same in fp32.

    python benchmarks/linear_time.py --model smollm2-135m-instruct --rows 1,2,4,8,16,32,64,128,512

Both copies of the weights in this process, which take turns; the least of several repetitions. The head sees all rows,
as in verification. Bytes are those of the weights in blocks: bandwidth says how near to memory's speed that pass is.
"""

import time
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from smartspec.engine.kernels.cpu.quantized_linear import dequantize
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.engine.models.linear import make_linear
from smartspec.engine.models.load import load_model
from smartspec.engine.models.quantized import QuantizedLinear

SECONDS = 1.0  # for each number of rows, at least
MIN_REPETITIONS = 3


@torch.inference_mode()
def main(
    model: Annotated[str, typer.Option(help="A model whose weights are in blocks.")] = DEFAULT_MODEL,
    quantization: Annotated[str, typer.Option(help="As in `smartspec serve`.")] = "auto",
    dtype: Annotated[str, typer.Option(help="As in `smartspec serve`.")] = "auto",
    rows: Annotated[str, typer.Option(help="Numbers of rows, separated by commas.")] = "1,2,4,8,16,32,64,128,512",
) -> None:
    """Print the table."""
    loaded = load_model(model, device="cpu", quantization=quantization, dtype=dtype)
    blocks = [module for module in loaded.model.modules() if isinstance(module, QuantizedLinear)]
    if not blocks:
        raise typer.BadParameter(f"no weight of {model} is in blocks: name a GGUF file, or --quantization int8 or int4")
    in_fp32 = [make_linear(torch.cat([dequantize(p.describe()) for p in linear.parts])) for linear in blocks]
    num_bytes = sum(part.blocks.nbytes for linear in blocks for part in linear.parts)
    table = Table("rows", "blocks, ms", "GB/s", "fp32, ms", "fp32 / blocks", title=f"{model}, all linears")
    for num_rows in map(int, rows.split(",")):
        ours, theirs = best_seconds([blocks, in_fp32], num_rows)
        table.add_row(
            str(num_rows),
            f"{ours * 1e3:.1f}",
            f"{num_bytes / ours / 1e9:.1f}",
            f"{theirs * 1e3:.1f}",
            f"{theirs / ours:.2f}",
        )
    Console().print(table)


def best_seconds(sides: list[list[nn.Module]], num_rows: int) -> list[float]:
    """Least seconds of a pass through all linears of each side, in turns."""
    best, began, repetitions = [float("inf")] * len(sides), time.perf_counter(), 0
    while repetitions < MIN_REPETITIONS or time.perf_counter() - began < SECONDS:
        repetitions += 1
        for side, linears in enumerate(sides):
            inputs = {linear.in_features: torch.ones(1, num_rows, linear.in_features) for linear in linears}
            start = time.perf_counter()
            for linear in linears:
                linear(inputs[linear.in_features])
            best[side] = min(best[side], time.perf_counter() - start)
    return best


if __name__ == "__main__":
    typer.run(main)
