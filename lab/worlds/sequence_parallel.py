"""Sequence parallelism whose degree follows the pass, as in LoongServe (Wu et al. 2024, arXiv
2404.09526).

Every device holds the whole model. With degree d, d devices share the tokens and the KV of a pass.
Each reads all the weights, so matrix products are faster where arithmetic is the longer part, as in
prefill. They are not faster where reading is, as in decoding. In each layer KV goes round the d
devices: a long prompt does not notice, a short step does. LoongServe changes the degree from phase
to phase; here each pass has the degree that is fastest for it.
"""

from dataclasses import dataclass, replace

import numpy as np

from smartspec.sim.world.hardware import Roofline


@dataclass(frozen=True)
class SequenceParallel(Roofline):
    """degree: a fixed one, None for the best of each pass among 1, 2, 4, ... devices."""

    degree: int | None = None

    @property
    def held_weights(self) -> float:
        return self.num_devices * self.model.stored_weights

    @property
    def degrees(self) -> tuple[int, ...]:
        """Those that a pass may have."""
        return tuple(2**i for i in range(self.num_devices.bit_length()))

    def seconds(
        self, fed_tokens, context_tokens, rows, attended_tokens=None, scored_tokens=None
    ) -> np.ndarray:
        """As Roofline.seconds."""
        sizes = fed_tokens, context_tokens, rows, attended_tokens, scored_tokens
        degrees = self.degrees if self.degree is None else (self.degree,)
        return np.min([self._with_degree(degree, sizes) for degree in degrees], axis=0)

    def _with_degree(self, degree: int, sizes: tuple) -> np.ndarray:
        """The tokens and the KV of one device of the degree, and the ring."""
        one = replace(self, num_devices=1, degree=None)
        fed, context, rows, attended, scored = sizes
        if attended is None:
            per_row = np.maximum(rows, 1)
            attended = np.asarray(fed, dtype=float) * np.maximum(
                context / per_row - (fed / per_row - 1) / 2, 0
            )
        scored = fed if scored is None else scored
        shared = (np.asarray(size, dtype=float) / degree for size in (fed, context))
        seconds = Roofline.seconds(
            one, *shared, rows, np.asarray(attended) / degree, np.asarray(scored) / degree
        )
        moved = np.asarray(fed, dtype=float) / degree * self.model.kv_bytes_per_token * (degree - 1)
        transfer = moved / (self.accelerator.link * self.link_efficiency)
        return seconds + (degree - 1) * self.model.layers * self.all_reduce_seconds + transfer
