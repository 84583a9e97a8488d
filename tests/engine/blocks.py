"""Random weights in GGUF's blocks."""

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

# Where 16-bit floats lie in a block: random bits there would be infinities.
SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}


def random_blocks(
    outputs: int, inputs: int, block_type: GGMLQuantizationType, seed: int = 0
) -> torch.Tensor:
    """uint8 [outputs, row_bytes]: any bits, scales of moderate size."""
    random = np.random.default_rng(seed)
    block_size, block_bytes = GGML_QUANT_SIZES[block_type]
    assert inputs % block_size == 0
    if block_size == 1:
        values = random.standard_normal((outputs, inputs)).astype(np.float32)
        if block_type.name == "F32":
            return torch.from_numpy(values.view(np.uint8))
        bits = (
            values.view(np.uint32) >> 16
            if block_type.name == "BF16"
            else values.astype(np.float16).view(np.uint16)
        )
        return torch.from_numpy(bits.astype(np.uint16).view(np.uint8))
    blocks = random.integers(0, 256, (outputs, inputs // block_size, block_bytes), dtype=np.uint8)
    for place in SCALES.get(block_type.name, (0,)):
        scales = random.standard_normal(blocks.shape[:2]).astype(np.float16)
        blocks[..., place : place + 2] = scales[..., None].view(np.uint8)
    return torch.from_numpy(blocks.reshape(outputs, -1))
