"""Speculative MoE (Li et al. 2025, arXiv 2503.04398) with the share of local experts as a constant:
experts spread over devices, and their all-to-all.

In every layer each token goes to the devices of its experts and back: two all-to-alls in the place
of an all-reduce. Speculative MoE predicts the routing, puts experts that are needed together on one
device, and sends tokens there beforehand. Then more of a token's experts are local, and fewer bytes
are moved. The latency of an all-to-all remains.
"""

from dataclasses import dataclass

import numpy as np

from smartspec.sim.world.hardware import BYTES_PER_VALUE, Roofline


@dataclass(frozen=True)
class ExpertParallel(Roofline):
    """all_to_all_seconds: latency of one."""

    all_to_all_seconds: float = 20e-6

    def __post_init__(self):
        super().__post_init__()
        if not self.model.experts or self.num_devices == 1:
            raise ValueError(
                "this host spreads experts: use a mixture, such as qwen-3-30b-a3b, and "
                "tensor_parallel > 1"
            )

    @property
    def local_share(self) -> float:
        """Share of a token's experts on its own device."""
        return 1 / self.num_devices

    def _expert_seconds(self, tokens: np.ndarray) -> np.ndarray:
        model = self.model
        copies = tokens * model.experts_per_token * (1 - self.local_share)
        link = self.num_devices * self.accelerator.link * self.link_efficiency
        transfer = copies * model.hidden * BYTES_PER_VALUE / link
        return super()._expert_seconds(tokens) + 2 * model.layers * (
            self.all_to_all_seconds + transfer
        )

    def all_reduce_seconds_of(self, tokens: np.ndarray) -> np.ndarray | float:
        return super().all_reduce_seconds_of(tokens) / 2  # that of attention alone


@dataclass(frozen=True)
class SpeculativeMoe(ExpertParallel):
    """grouped_share: of the experts that would be remote, those that prediction makes local.
    Assumed: the share depends on the model and its texts."""

    grouped_share: float = 0.5

    @property
    def local_share(self) -> float:
        return super().local_share + self.grouped_share * (1 - super().local_share)
