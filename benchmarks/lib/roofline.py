"""Bytes and products of a pass by rows, over what the machine can do."""

import warnings
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from lib.pass_time import CONTEXT
from lib.timing import WALL, bandwidth, in_turns
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.models.load import load_model
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner

MATRIX = 2048  # inputs and outputs of the large products
GIGA = 1e9


def report(model: str, rows: str, prefill: str, repetitions: int) -> None:
    """Print the table. Arguments are the options of `step.py roofline`."""
    scored = [int(count) for count in rows.split(",")]
    prompts = [int(length) for length in prefill.split(",")]
    loaded = load_model(model, device="cpu")
    runner = ModelRunner(loaded, num_slots=1, max_len=CONTEXT + max(*scored, *prompts))
    runner.cache.write_ones(0, 0, CONTEXT)
    kv_numbers = 2 * CONTEXT * loaded.num_layers * loaded.num_kv_heads * loaded.head_dim
    passes = [(count, count) for count in scored] + [(length, 1) for length in prompts]
    segments = [
        [Segment(0, CONTEXT, np.arange(count, dtype=np.int32), wanted)] for count, wanted in passes
    ]
    calls = [partial(runner.forward, each) for each in segments]
    seconds = in_turns(calls, repetitions)[..., WALL].min(axis=0)
    speed, (in_int8, in_fp32) = bandwidth(), _products_per_second()
    table = Table(
        "rows", "scored", "ms", "GB/s", "of memory's", "products/s", "of int8's", "least, ms"
    )
    table.title = (
        f"{model}: memory {speed / GIGA:.0f} GB/s, products in int8 {in_int8 / GIGA:.0f} G/s, in "
        f"fp32 {in_fp32 / GIGA:.0f} G/s"
    )
    for (count, wanted), taken in zip(passes, seconds.tolist(), strict=True):
        num_bytes, products = (
            loaded.weight_bytes + kv_numbers * loaded.dtype.itemsize,
            _products(loaded, count, wanted),
        )
        read, multiplied = num_bytes / taken, products / taken
        of_memory = f"{read / GIGA:.1f}", f"{read / speed:.0%}"
        of_int8 = f"{multiplied / GIGA:.0f} G", f"{multiplied / in_int8:.0%}"
        least = max(num_bytes / speed, products / in_int8)
        table.add_row(
            str(count),
            str(wanted),
            f"{1e3 * taken:.2f}",
            *of_memory,
            *of_int8,
            f"{1e3 * least:.2f}",
        )
    Console(width=120).print(table)


def _products(loaded: LoadedModel, rows: int, scored: int) -> int:
    """Multiplications of a weight with an activation in all linears; the head sees the scored rows
    alone."""
    head = loaded.model.get_output_embeddings()
    linears = [
        m for m in loaded.model.modules() if hasattr(m, "in_features") and not list(m.children())
    ]
    return sum(m.in_features * m.out_features * (scored if m is head else rows) for m in linears)


def _products_per_second() -> tuple[float, float]:
    """What torch's linears reach in 8 bits and in fp32. Its product of int8 matrices (`_int_mm`) is
    no measure: it is a plain loop where a processor has no instruction for it."""
    inputs = torch.randn(MATRIX, MATRIX)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, without another public way to these kernels
        weights = torch.quantize_per_tensor(inputs, 0.05, 0, torch.qint8)
        rounded = torch.quantize_per_tensor(inputs, 0.05, 128, torch.quint8)
    packed = torch.ops.quantized.linear_prepack(weights, None)
    calls = [
        partial(torch.ops.quantized.linear, rounded, packed, 0.1, 128),
        partial(torch.mm, inputs, inputs),
    ]
    in_int8, in_fp32 = MATRIX**3 / in_turns(calls, 8)[..., WALL].min(axis=0)
    return float(in_int8), float(in_fp32)
