"""A draft pass whose layers run side by side, as in EasySpec (Wu et al. 2025, arXiv 2502.02493).

Consecutive layers of the draft model run at once, one on each device, all from the same input. So a
pass starts kernels and exchanges results once for each group of layers, where tensor parallelism
does so for every layer. Matrices and attention take as long: a device reads a whole layer, and
waits for no other. The result is fuzzy. It is accepted less often, and after each draft one exact
pass computes the KV of the accepted tokens anew. That pass drafts a token itself.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from smartspec.sim.world.hardware import Roofline


@dataclass(frozen=True)
class LayerParallel:
    """Fuzzy passes of a draft model. exact: the same model on the same devices with tensor
    parallelism."""

    exact: Roofline
    # of a fuzzy token's acceptance; the paper's largest loss is 7 %
    accuracy: ClassVar[float] = 0.93

    def seconds(
        self,
        fed_tokens: np.ndarray | float,
        context_tokens: np.ndarray | float,
        rows: np.ndarray | float,
        attended_tokens: np.ndarray | float | None = None,
        scored_tokens: np.ndarray | float | None = None,
    ) -> np.ndarray:
        """Seconds of passes of these sizes (broadcast); arguments as in Roofline.seconds."""
        sizes = fed_tokens, context_tokens, rows, attended_tokens, scored_tokens
        layers, fed = self.exact.model.layers, np.asarray(fed_tokens, dtype=float)
        groups = -(-layers // self.exact.num_devices)
        starts = (layers - groups) * self.exact.layer_seconds
        exchanges = (1 - groups / (2 * layers)) * self.exact.all_reduce_seconds_of(fed)
        return self.exact.seconds(*sizes) - starts - exchanges
