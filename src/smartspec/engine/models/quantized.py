"""Linear layers and embeddings whose weights stay in GGUF's blocks: a quarter to a sixth of fp32's bytes.

They compute what the dequantised modules would, up to the order in which fp32 sums are taken. At few rows our own
kernel reads the blocks; at many, where arithmetic decides, blocks are unpacked a part at a time and torch multiplies.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from gguf import GGMLQuantizationType
from torch import nn

from smartspec.engine.kernels.cpu import quantized_linear as kernels

UNPACKED_WEIGHTS = 1 << 20  # unpacked at once: 4 MiB, which stay in a cache
FEW_ROWS = 16  # up to here our own kernel unpacks into registers, which no other way can beat
TIMED_ROWS = (32, 64, 128, 256, 512)
MAX_TIMED_OUTPUTS = 1 << 20  # rows x outputs: the head sees few rows
REPETITIONS = 3


@dataclass(frozen=True)
class QuantizedWeight:
    """blocks: uint8 [outputs, row_bytes], contiguous. Raises ValueError where they are no blocks of this type."""

    blocks: torch.Tensor
    type: GGMLQuantizationType

    def __post_init__(self) -> None:
        kernels.num_inputs(self.blocks, self.type)

    @property
    def outputs(self) -> int:
        return len(self.blocks)

    @property
    def inputs(self) -> int:
        return kernels.num_inputs(self.blocks, self.type)


class QuantizedLinear(nn.Module):
    """x [..., in_features] -> x @ weight.T + bias [..., out_features], fp32 on CPU.

    parts: weights whose outputs stand side by side. few_rows: up to how many rows our own kernel multiplies.
    """

    def __init__(self, parts: list[QuantizedWeight], bias: torch.Tensor | None = None):
        super().__init__()
        self.parts = _merged(parts)
        self.in_features, self.out_features = parts[0].inputs, sum(part.outputs for part in parts)
        if any(part.inputs != self.in_features for part in parts):
            raise ValueError(f"weights side by side must have as many inputs, got {[p.inputs for p in parts]}")
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.few_rows = FEW_ROWS
        self.columns = [sum(part.outputs for part in self.parts[:i]) for i in range(len(self.parts))]
        self._weights = [kernels.describe(part.blocks, part.type) for part in self.parts]

    @property
    def weight(self) -> torch.Tensor:
        """Shape, dtype and device of the weight, for models that ask; its values are NaN: they are in the blocks."""
        return torch.full((), torch.nan).expand(self.out_features, self.in_features)

    @property
    def kernel_weights(self) -> list[kernels.Weight]:
        """What kernels are given, side by side, each with its part of the bias; they hold addresses of tensors here."""
        sizes = [part.outputs for part in self.parts]
        biases = [None] * len(sizes) if self.bias is None else self.bias.split(sizes)
        return [kernels.describe(part.blocks, part.type, bias) for part, bias in zip(self.parts, biases, strict=True)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features).contiguous()
        output = rows.new_empty(len(rows), self.out_features)
        (self.multiply_blocks if len(rows) <= self.few_rows else self.multiply_unpacked)(rows, output)
        if self.bias is not None:
            output += self.bias
        return output.view(*x.shape[:-1], self.out_features)

    def multiply_blocks(self, rows: torch.Tensor, output: torch.Tensor) -> None:
        """output [n, out_features] = rows [n, in_features] @ weight.T, by our own kernel."""
        for weight, column in zip(self._weights, self.columns, strict=True):
            kernels.linear(rows, weight, output, column)

    def multiply_unpacked(self, rows: torch.Tensor, output: torch.Tensor) -> None:
        """The same by torch on the dequantised weight, which exists a part at a time."""
        step = max(1, UNPACKED_WEIGHTS // self.in_features)
        for part, column in zip(self.parts, self.columns, strict=True):
            for first in range(0, part.outputs, step):
                unpacked = kernels.dequantize(part.blocks[first : first + step], part.type)
                begin = column + first
                torch.mm(rows, unpacked.T, out=output[:, begin : begin + len(unpacked)])

    def extra_repr(self) -> str:
        types = "+".join(part.type.name for part in self.parts)
        return f"in_features={self.in_features}, out_features={self.out_features}, type={types}"


class QuantizedEmbedding(nn.Module):
    """token_ids [...] -> the dequantised rows of the weight [..., inputs]."""

    def __init__(self, weight: QuantizedWeight):
        super().__init__()
        self.quantized = weight
        self.num_embeddings, self.embedding_dim = weight.outputs, weight.inputs

    @property
    def weight(self) -> torch.Tensor:
        """As QuantizedLinear.weight."""
        return torch.full((), torch.nan).expand(self.num_embeddings, self.embedding_dim)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        rows = self.quantized.blocks[token_ids.reshape(-1)]
        return kernels.dequantize(rows, self.quantized.type).view(*token_ids.shape, self.embedding_dim)


def block_types(model: nn.Module) -> set[GGMLQuantizationType]:
    """Types of the blocks there are in the model."""
    return {weight.type for weight in _weights_of(model)}


def weight_bytes(model: nn.Module) -> int:
    """Bytes of the model's distinct parameters and blocks."""
    blocks = {weight.blocks.data_ptr(): weight.blocks.nbytes for weight in _weights_of(model)}
    return sum(p.numel() * p.element_size() for p in model.parameters()) + sum(blocks.values())


def _weights_of(model: nn.Module) -> list[QuantizedWeight]:
    linears = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    embeddings = [module.quantized for module in model.modules() if isinstance(module, QuantizedEmbedding)]
    return [part for linear in linears for part in linear.parts] + embeddings


@contextmanager
def unpacked(model: nn.Module) -> Iterator[None]:
    """Inside the block linears multiply the dequantised weight by torch, whatever the number of rows."""
    linears = {module: module.few_rows for module in model.modules() if isinstance(module, QuantizedLinear)}
    for linear in linears:
        linear.few_rows = 0
    try:
        yield
    finally:
        for linear, few_rows in linears.items():
            linear.few_rows = few_rows


@torch.inference_mode()
def choose_few_rows(model: nn.Module) -> None:
    """Measure, for every shape, up to how many rows our own kernel is the faster way on this machine."""
    chosen: dict[tuple, int] = {}
    for linear in [module for module in model.modules() if isinstance(module, QuantizedLinear)]:
        shape = (linear.in_features, *((part.type, part.outputs) for part in linear.parts))
        if shape not in chosen:
            chosen[shape] = _most_rows_for_blocks(linear)
        linear.few_rows = chosen[shape]


def _most_rows_for_blocks(linear: QuantizedLinear) -> int:
    most = FEW_ROWS
    for num_rows in TIMED_ROWS:
        if num_rows * linear.out_features > MAX_TIMED_OUTPUTS:
            break
        arguments = torch.ones(num_rows, linear.in_features), torch.empty(num_rows, linear.out_features)
        if _best_seconds(linear.multiply_blocks, *arguments) > _best_seconds(linear.multiply_unpacked, *arguments):
            break
        most = num_rows
    return most


def _best_seconds(multiply: Callable, *arguments: torch.Tensor) -> float:
    durations = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        multiply(*arguments)
        durations.append(time.perf_counter() - began)
    return min(durations)


def _merged(parts: list[QuantizedWeight]) -> list[QuantizedWeight]:
    """Neighbours of one type as one weight, whose rows of blocks lie behind each other."""
    merged: list[list[QuantizedWeight]] = []
    for part in parts:
        if merged and merged[-1][0].type == part.type and merged[-1][0].inputs == part.inputs:
            merged[-1].append(part)
        else:
            merged.append([part])
    return [p[0] if len(p) == 1 else QuantizedWeight(torch.cat([w.blocks for w in p]), p[0].type) for p in merged]
