"""Fang et al. 2025 (arXiv 2502.12224) with the accuracy of its prediction as a constant: experts in
the host's memory, fetched before they are needed.

The devices hold a share of the experts. The others that the tokens of a pass need are moved over
the bus to the host. Their system predicts the experts of a layer from the input of the layer
before, and moves them while that one computes. So of the moved experts those that were predicted
cost what exceeds the time of a layer, and the others all their time.
"""

from dataclasses import dataclass

import numpy as np

from smartspec.sim.world.hardware import BYTES_PER_VALUE, Roofline


@dataclass(frozen=True)
class OffloadedExperts(Roofline):
    """Experts are moved when they are needed.

    cached: share of the experts that the devices hold. Which are needed is independent of it.
    predicted: share of the moved experts that are known a layer before. bus: bytes per second from
    the host, of PCIe 5 x16 as measured.
    """

    cached: float = 0.9
    predicted: float = 0.0
    bus: float = 55e9

    def __post_init__(self):
        super().__post_init__()
        if not self.model.experts:
            raise ValueError(
                "this host moves experts, and the model has none: use a mixture, such as "
                "qwen-3-30b-a3b"
            )

    @property
    def held_weights(self) -> float:
        moved = (1 - self.cached) * self.model.experts * self.model.expert_weights
        return self.model.stored_weights - moved

    def _expert_seconds(self, tokens: np.ndarray) -> np.ndarray:
        model, computed = self.model, super()._expert_seconds(tokens)
        num_bytes = (
            (1 - self.cached)
            * model.distinct_experts(tokens)
            * model.expert_weights
            * BYTES_PER_VALUE
        )
        moved = num_bytes / (self.num_devices * self.bus)
        hidden = computed + self._matrix_seconds(
            model.layer_weights, self._activation_bytes, tokens
        )
        exposed = np.maximum(
            self.predicted * moved - hidden - model.layers * self.layer_seconds, 0.0
        )
        return computed + exposed + (1 - self.predicted) * moved


@dataclass(frozen=True)
class PrefetchedExperts(OffloadedExperts):
    """predicted: the accuracy that the paper reports."""

    predicted: float = 0.97
