"""Linear layers and embeddings whose weights stay in GGUF's blocks: a quarter to a sixth of fp32's
bytes.

They compute what the dequantised modules would, up to the order in which fp32 sums are taken.
Blocks of some types are laid out anew for our kernels when a model is prepared, as many bytes as
before.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from gguf import GGMLQuantizationType
from torch import nn

from smartspec.engine.kernels.cpu import quantized_linear as kernels

UNPACKED_WEIGHTS = 1 << 20  # unpacked at once: 4 MiB, which stay in a cache


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight in blocks. Raises ValueError where they are no blocks of this type."""

    blocks: torch.Tensor  # uint8 [outputs, row_bytes], contiguous
    type: GGMLQuantizationType

    def __post_init__(self) -> None:
        kernels.num_inputs(self.blocks, self.type)

    @property
    def outputs(self) -> int:
        return len(self.blocks)

    def describe(self, bias: torch.Tensor | None = None) -> kernels.Weight:
        """The weight as kernels are given it; it holds addresses of tensors."""
        return kernels.describe(self.blocks, self.type, bias)


@dataclass(frozen=True)
class PanelWeight:
    """The same by panels (kernels.to_block_panels)."""

    blocks: torch.Tensor  # uint8 [panels, panel width x row_bytes]
    type: GGMLQuantizationType
    outputs: int
    rounds: int = 0  # it is multiplied with inputs rounded to so many terms, see round_inputs

    def describe(self, bias: torch.Tensor | None = None) -> kernels.Weight:
        return kernels.describe_panels(
            self.blocks, self.type, self.outputs, bias, rounds=self.rounds
        )


class QuantizedLinear(nn.Module):
    """x [..., in_features] -> x @ weight.T + bias [..., out_features], fp32 on CPU.

    parts: weights whose outputs stand side by side. unpacks: torch multiplies the dequantised
    weight instead.
    """

    def __init__(self, parts: list[QuantizedWeight], bias: torch.Tensor | None = None):
        super().__init__()
        widths = [part.describe().inputs for part in parts]
        if len(set(widths)) > 1:
            raise ValueError(f"weights side by side must have as many inputs, got {widths}")
        self.parts: list[QuantizedWeight | PanelWeight] = [*_merged(parts)]
        self.in_features, self.out_features = widths[0], sum(part.outputs for part in parts)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.unpacks = False

    @property
    def weight(self) -> torch.Tensor:
        """Shape, dtype and device of the weight, for models that read it; its values are NaN: they
        are in the blocks."""
        return torch.full((), torch.nan).expand(self.out_features, self.in_features)

    @property
    def kernel_weights(self) -> list[kernels.Weight]:
        """The weights for kernels, side by side, each with its part of the bias; they hold
        addresses of its tensors."""
        sizes = [part.outputs for part in self.parts]
        biases = [None] * len(sizes) if self.bias is None else self.bias.split(sizes)
        return [part.describe(bias) for part, bias in zip(self.parts, biases, strict=True)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features).contiguous()
        output = rows.new_empty(len(rows), self.out_features)
        column = 0
        for weight in self.kernel_weights:
            if self.unpacks:
                _multiply_unpacked(rows, weight, output[:, column : column + weight.outputs])
            else:
                kernels.linear(rows, weight, output, column)
            column += weight.outputs
        if self.unpacks and self.bias is not None:
            output += self.bias
        return output.view(*x.shape[:-1], self.out_features)


class QuantizedEmbedding(nn.Module):
    """token_ids [...] -> the dequantised rows of the weight, times scale, [..., inputs]."""

    def __init__(self, weight: QuantizedWeight, scale: float = 1.0):
        super().__init__()
        self.quantized: QuantizedWeight | PanelWeight = weight
        self.scale = scale
        self.num_embeddings, self.embedding_dim = weight.outputs, weight.describe().inputs

    @property
    def weight(self) -> torch.Tensor:
        """The same as QuantizedLinear.weight."""
        return torch.full((), torch.nan).expand(self.num_embeddings, self.embedding_dim)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        rows = self.look_up(token_ids)
        return rows if self.scale == 1.0 else rows.mul_(self.scale)

    def look_up(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The rows as the weight has them."""
        rows = kernels.dequantize(self.quantized.describe(), token_ids.reshape(-1))
        return rows.view(*token_ids.shape, self.embedding_dim)


def can_be_on_blocks(module: nn.Module) -> bool:
    """True if put_on_blocks knows the module's forward."""
    return type(module) is nn.Linear or scale_of_embedding(module) is not None


def put_on_blocks(model: nn.Module, path: str, weight: QuantizedWeight) -> None:
    """Let the linear or embedding at this path, of which can_be_on_blocks, compute with the weight,
    in place."""
    module = model.get_submodule(path)
    if isinstance(module, nn.Linear):
        model.set_submodule(path, QuantizedLinear([weight], module.bias))
        return
    scale = scale_of_embedding(module)
    assert scale is not None
    model.set_submodule(path, QuantizedEmbedding(weight, scale))


@torch.inference_mode()
def scale_of_embedding(module: nn.Module) -> float | None:
    """The factor by which an embedding multiplies the rows of its weight in fp32; None where it is
    none, or computes something else of them. Its own weight is not read."""
    if type(module) is nn.Embedding:
        return 1.0
    if not isinstance(module, nn.Embedding):
        return None
    rows = torch.stack(
        [torch.ones(module.embedding_dim), torch.linspace(-3, 3, module.embedding_dim)]
    )
    of_rows = copy.copy(module)
    of_rows._parameters = {"weight": nn.Parameter(rows, requires_grad=False)}
    try:
        found = of_rows(torch.arange(2))
    except (IndexError, RuntimeError, TypeError, ValueError):  # it takes something else, or more
        return None
    scale = float(found[0, 0]) if found.shape == rows.shape else 0.0
    return scale if scale and torch.equal(found, rows * scale) else None


def block_types(model: nn.Module) -> set[GGMLQuantizationType]:
    """Types of the blocks there are in the model."""
    return {weight.type for weight in _weights_of(model)}


def weight_bytes(model: nn.Module) -> int:
    """Bytes of the model's distinct parameters and blocks."""
    blocks = {weight.blocks.data_ptr(): weight.blocks.nbytes for weight in _weights_of(model)}
    return sum(p.numel() * p.element_size() for p in model.parameters()) + sum(blocks.values())


def _linears_of(model: nn.Module) -> list[QuantizedLinear]:
    return [module for module in model.modules() if isinstance(module, QuantizedLinear)]


def _embeddings_of(model: nn.Module) -> list[QuantizedEmbedding]:
    return [module for module in model.modules() if isinstance(module, QuantizedEmbedding)]


def _weights_of(model: nn.Module) -> list[QuantizedWeight | PanelWeight]:
    linears = [part for linear in _linears_of(model) for part in linear.parts]
    return linears + [embedding.quantized for embedding in _embeddings_of(model)]


@contextmanager
def unpacked(model: nn.Module) -> Iterator[None]:
    """Inside the block linears multiply the dequantised weight by torch."""
    linears = _linears_of(model)
    for linear in linears:
        linear.unpacks = True
    try:
        yield
    finally:
        for linear in linears:
            linear.unpacks = False


def lay_out_by_panels(model: nn.Module) -> None:
    """Lay blocks out as our kernels read them, in place; a weight that several modules share stays
    one. Kernels that were given a weight before must not use it any more."""
    made: dict[int, QuantizedWeight | PanelWeight] = {}

    def by_panels(weight: QuantizedWeight | PanelWeight) -> QuantizedWeight | PanelWeight:
        if isinstance(weight, PanelWeight) or not kernels.fits_panels(weight.blocks, weight.type):
            return weight
        address = weight.blocks.data_ptr()
        if address not in made:
            made[address] = PanelWeight(
                kernels.to_block_panels(weight.blocks, weight.type), weight.type, weight.outputs
            )
        return made[address]

    for linear in _linears_of(model):
        linear.parts = [by_panels(part) for part in linear.parts]
    for embedding in _embeddings_of(model):
        embedding.quantized = by_panels(embedding.quantized)


def round_inputs(
    model: nn.Module,
    types: frozenset[GGMLQuantizationType],
    *,
    terms: int = 1,
    in_two_terms: frozenset[nn.Module] = frozenset(),
) -> bool:
    """Let linears on weights of these types by panels round inputs where the kernels can: to
    bfloat16 for BF16, at twice the speed of fp32, to so many terms of 8 bits for blocks, at up to
    four times; whether there are any. terms: 0 for inputs as they are. in_two_terms: linears whose
    terms are two."""
    found = False
    for linear in _linears_of(model):
        for i, part in enumerate(linear.parts):
            if (
                part.type in types
                and isinstance(part, PanelWeight)
                and kernels.can_round(part.type, linear.in_features)
            ):
                linear.parts[i], found = (
                    replace(part, rounds=2 if linear in in_two_terms else terms),
                    True,
                )
    return found


def _multiply_unpacked(rows: torch.Tensor, weight: kernels.Weight, output: torch.Tensor) -> None:
    """output [n, outputs] = rows [n, inputs] @ weight.T by torch, with the weight unpacked a part
    at a time."""
    step = max(1, UNPACKED_WEIGHTS // weight.inputs)
    for ids in torch.arange(weight.outputs).split(step):
        part = kernels.dequantize(weight, ids)
        torch.mm(rows, part.T, out=output[:, int(ids[0]) : int(ids[0]) + len(ids)])


def _merged(parts: list[QuantizedWeight]) -> list[QuantizedWeight]:
    """Neighbours of one type as one weight, whose rows of blocks follow each other."""
    merged: list[list[QuantizedWeight]] = []
    for part in parts:
        if merged and merged[-1][0].type == part.type:
            merged[-1].append(part)
        else:
            merged.append([part])
    return [
        p[0] if len(p) == 1 else QuantizedWeight(torch.cat([w.blocks for w in p]), p[0].type)
        for p in merged
    ]
