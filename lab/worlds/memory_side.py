"""Processing in memory beside a GPU, chosen by the number of tokens, as in PAPI (He et al. 2025,
arXiv 2502.15470).

Units in the memory read weights faster than the GPU does and compute slower. So a matrix product of
few tokens is faster there, one of many on the GPU. PAPI watches the number of tokens, which is
requests times tokens of each, and sends matrix products to the faster side. Attention of decoding
is
computed in memory. A draft token adds to that number: the
best draft length and the best side depend on each other.

The paper's own figures of the memory were not found. Here its bandwidth is 4 times that of the
GPU's memory, as of the HBM-PIM of Kwon et al. (ISSCC 2021), and it computes 8 operations per byte
that it reads.
"""

from dataclasses import dataclass

import numpy as np

from smartspec.sim.world.hardware import BYTES_PER_VALUE, Roofline


@dataclass(frozen=True)
class MemorySide(Roofline):
    """All matrix products and all attention in memory: what a machine without PAPI's choice does.

    bandwidth_factor: of the GPU's memory. operations_per_byte: that the units compute.
    """

    bandwidth_factor: float = 4.0
    operations_per_byte: float = 8.0

    def _matrix_seconds(
        self, weights: int, bytes_per_token: float, tokens: np.ndarray
    ) -> np.ndarray:
        return self._in_memory(
            2 * weights * tokens, weights * BYTES_PER_VALUE + bytes_per_token * tokens
        )

    def _attention_seconds(
        self, context_tokens: np.ndarray | float, attended_tokens: np.ndarray | float
    ) -> np.ndarray:
        model = self.model
        flops = (
            4
            * model.layers
            * model.heads
            * model.head_dim
            * np.asarray(attended_tokens, dtype=float)
        )
        return self._in_memory(flops, model.kv_bytes_per_token * context_tokens)

    def _in_memory(self, flops: np.ndarray, num_bytes: np.ndarray) -> np.ndarray:
        """Units compute while they read, so the longer of the two counts alone."""
        speed = (
            self.num_devices
            * self.accelerator.bandwidth
            * self.bandwidth_efficiency
            * self.bandwidth_factor
        )
        return np.maximum(flops / (speed * self.operations_per_byte), num_bytes / speed)


@dataclass(frozen=True)
class NearMemory(MemorySide):
    """PAPI: the faster side for each pass's matrix products, and for its attention, as prefill's is
    not for memory."""

    def _matrix_seconds(
        self, weights: int, bytes_per_token: float, tokens: np.ndarray
    ) -> np.ndarray:
        in_memory = super()._matrix_seconds(weights, bytes_per_token, tokens)
        return np.minimum(
            in_memory, Roofline._matrix_seconds(self, weights, bytes_per_token, tokens)
        )

    def _attention_seconds(
        self, context_tokens: np.ndarray | float, attended_tokens: np.ndarray | float
    ) -> np.ndarray:
        in_memory = super()._attention_seconds(context_tokens, attended_tokens)
        return np.minimum(
            in_memory, Roofline._attention_seconds(self, context_tokens, attended_tokens)
        )
