"""Our own kernels for linear layers, on weights in GGUF's blocks or in fp32 (passes.c, linear.h),
fp32 sums, on CPU.

Why: at few rows a step takes as long as its weights take to be read, and blocks of 4 bits are a
sixth of fp32. torch's own kernel for groups of 4 bits (`_weight_int4pack_mm_for_cpu`) rounds inputs
to bfloat16, which changes outputs, knows one kind of block of GGUF's eight, and is no faster:
layers of the default model, one core of Zen 3, 16 ms against 12 at one row, 23 against 20 at four,
116 against 88 at sixteen.
"""

import ctypes
import functools

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from smartspec.engine.kernels.cpu.native import load_kernels
from smartspec.engine.kernels.cpu.shapes import address, fields, optional_address

LIBRARY = "passes"
BLOCK_TYPES = frozenset(
    GGMLQuantizationType[name]
    for name in ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
)
# Blocks by panels, several outputs side by side, as kernels read them faster, and their numbers
# (block_panels.h).
_BY_PANELS = ("Q4_0", "Q4_1", "Q8_0", "BF16", "F16", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
BY_PANELS = {GGMLQuantizationType[name]: -2 - i for i, name in enumerate(_BY_PANELS)}
_PLAIN = frozenset([GGMLQuantizationType.BF16, GGMLQuantizationType.F16])
INT8_TYPES = frozenset(BY_PANELS) - _PLAIN  # that can be multiplied with inputs in 8 bits
TYPE_PANELS = -1  # fp32 by panels (panels.h)
PANEL_INPUTS = 32  # of a group of a panel
MOST_TERMS = 2  # of 8 bits each
_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64


class Weight(ctypes.Structure):
    """`Weight` of weight.h: what the kernels, and those that include linear.h, know of a weight. It
    holds addresses: the tensors must outlive it."""

    _fields_ = [
        *fields(_POINTER, "blocks", "bias"),
        *fields(_INTEGER, "outputs", "inputs", "row_bytes", "type", "rounds"),
    ]

    @property
    def reads_blocks(self) -> bool:
        """True if x is rounded to 8 bits."""
        return bool(self.rounds) and self.type not in [BY_PANELS[kind] for kind in _PLAIN]


def num_inputs(blocks: torch.Tensor, block_type: GGMLQuantizationType) -> int:
    """Width of the weight whose rows are these blocks, uint8 [outputs, row_bytes]. Raises
    ValueError if it is none."""
    block_size, block_bytes = GGML_QUANT_SIZES[block_type]
    if block_type not in BLOCK_TYPES:
        raise ValueError(f"no kernel reads blocks of type {block_type.name}")
    if (
        blocks.dtype != torch.uint8
        or blocks.dim() != 2
        or blocks.shape[1] % block_bytes
        or not blocks.is_contiguous()
    ):
        raise ValueError(
            f"rows of {block_type.name} blocks must be uint8 [outputs, n * {block_bytes}], "
            "contiguous"
        )
    return blocks.shape[1] // block_bytes * block_size


def describe(
    blocks: torch.Tensor, block_type: GGMLQuantizationType, bias: torch.Tensor | None = None
) -> Weight:
    """The weight in blocks uint8 [outputs, row_bytes], and its bias fp32 [outputs], for the
    kernels."""
    inputs, (outputs, row_bytes) = num_inputs(blocks, block_type), blocks.shape
    pointers = (
        address("blocks", blocks, (outputs, row_bytes), torch.uint8),
        optional_address("bias", bias, (outputs,)),
    )
    return Weight(*pointers, outputs, inputs, row_bytes, int(block_type))


def describe_floats(weight: torch.Tensor) -> Weight:
    """The plain weight fp32 [outputs, inputs] for the kernels that look rows up."""
    outputs, inputs = weight.shape
    row_bytes = inputs * weight.element_size()
    pointer = address("weight", weight, (outputs, inputs))
    return Weight(pointer, None, outputs, inputs, row_bytes, int(GGMLQuantizationType.F32))


def panel_width() -> int:
    """Outputs that lie side by side in a panel, on this machine."""
    return _kernels().panel_width()


def fits_panels(blocks: torch.Tensor, block_type: GGMLQuantizationType) -> bool:
    """True if to_block_panels takes these."""
    return block_type in BY_PANELS and num_inputs(blocks, block_type) % PANEL_INPUTS == 0


def to_block_panels(blocks: torch.Tensor, block_type: GGMLQuantizationType) -> torch.Tensor:
    """Blocks uint8 [outputs, row_bytes], for which fits_panels holds, by panels: uint8 [panels,
    bytes of one], the last panel filled up with zeros."""
    weight, number = describe(blocks, block_type), BY_PANELS[block_type]
    num_bytes = _kernels().panel_bytes(number, weight.inputs)
    panels = torch.zeros(-(-weight.outputs // panel_width()), num_bytes, dtype=torch.uint8)
    # made here, of the size it is told
    _kernels().to_block_panels(ctypes.byref(weight), number, panels.data_ptr())
    return panels


def can_round(block_type: GGMLQuantizationType, inputs: int) -> bool:
    """True if x of so many inputs may be rounded for weights of this type by panels: to bfloat16
    for BF16, where the processor multiplies that, and to 8 bits for blocks."""
    if block_type == GGMLQuantizationType.BF16:
        return inputs <= _kernels().most_rounded_inputs()
    return block_type in INT8_TYPES


def int8_instructions() -> str:
    """The instructions with which this processor multiplies 8-bit inputs, "" where none is faster
    than fp32."""
    return _kernels().int8_instructions().decode()


def rounded_memory(num_rows: int, inputs: int) -> torch.Tensor:
    """Memory for so many rows of x rounded to 8 bits, in up to MOST_TERMS terms
    (rounded_inputs.h)."""
    num_bytes = (
        MOST_TERMS * num_rows * -(-inputs // PANEL_INPUTS) * _kernels().rounded_block_bytes()
    )
    return torch.empty(num_bytes, dtype=torch.uint8)


def describe_panels(
    panels: torch.Tensor,
    block_type: GGMLQuantizationType,
    outputs: int,
    bias: torch.Tensor | None = None,
    *,
    rounds: int = 0,
) -> Weight:
    """The weight that to_block_panels gave, and its bias fp32 [outputs], for the kernels. rounds: x
    is rounded, for blocks to so many terms of 8 bits; only where can_round."""
    inputs = panels.shape[1] * 256 // _kernels().panel_bytes(BY_PANELS[block_type], 256)
    whole = -(-outputs // panel_width()), _kernels().panel_bytes(BY_PANELS[block_type], inputs)
    pointers = (
        address("panels", panels, whole, torch.uint8),
        optional_address("bias", bias, (outputs,)),
    )
    assert 0 <= rounds <= MOST_TERMS and (not rounds or can_round(block_type, inputs))
    return Weight(*pointers, outputs, inputs, panels.shape[1], BY_PANELS[block_type], rounds)


def linear(x: torch.Tensor, weight: Weight, output: torch.Tensor, column: int = 0) -> None:
    """output[:, column : column + outputs] = x [num_rows, inputs] @ weight.T + bias."""
    num_rows, width = output.shape
    of_x = address("x", x, (num_rows, weight.inputs))
    first = address("output", output, (num_rows, max(width, column + weight.outputs)))
    rounded = rounded_memory(num_rows, weight.inputs if weight.reads_blocks else 0)
    place = first + column * output.element_size()
    _kernels().linear(ctypes.byref(weight), of_x, rounded.data_ptr(), num_rows, place, width)


def dequantize(weight: Weight, rows: torch.Tensor | None = None) -> torch.Tensor:
    """fp32 [n, inputs]: rows int64 [n] of the weight, or all of them, exactly what
    gguf.quants.dequantize gives.

    Raises IndexError for a row that is not there, ValueError for fp32 by panels, whose rows no
    kernel reads."""
    if weight.type == TYPE_PANELS:
        raise ValueError("rows of a weight in fp32 by panels cannot be looked up")
    if rows is None:
        rows = torch.arange(weight.outputs)
    elif len(rows):
        numbers = rows.numpy()  # which looks at a few of them faster than torch
        lowest, highest = numbers.min(), numbers.max()
        if lowest < 0 or highest >= weight.outputs:
            raise IndexError(
                f"rows must lie in 0 to {weight.outputs - 1}, got {lowest} to {highest}"
            )
    rows, output = rows.to(torch.int64).contiguous(), torch.empty(len(rows), weight.inputs)
    _kernels().dequantise_rows(ctypes.byref(weight), rows.data_ptr(), len(rows), output.data_ptr())
    return output


@functools.cache
def _kernels() -> ctypes.CDLL:
    library = load_kernels(LIBRARY).library
    library.linear.argtypes = [_POINTER, _POINTER, _POINTER, _INTEGER, _POINTER, _INTEGER]
    library.dequantise_rows.argtypes = [_POINTER, _POINTER, _INTEGER, _POINTER]
    library.panel_bytes.argtypes, library.panel_bytes.restype = [_INTEGER] * 2, _INTEGER
    library.to_block_panels.argtypes = [_POINTER, _INTEGER, _POINTER]
    for name in ("panel_width", "most_rounded_inputs", "rounded_block_bytes"):
        getattr(library, name).restype = _INTEGER
    library.int8_instructions.restype = ctypes.c_char_p
    return library
