"""BlockLLM (Hu et al. 2024, arXiv 2404.18322) with the chance of a right guess as a constant:
blocks of layers on separate servers, with speculated outputs.

Servers hold blocks of a model that several models share, and activations go from one to the next
over a network. A cheap stand-in block guesses the output of a block, so that the next one can begin
before the real output has come. If the guess was right, the transfer is hidden; if not, the next
block is computed again. So it is speculated only where

    p(right) x transfer  >  (1 - p(right)) x block

The more tokens a pass has, the less likely are all of them guessed right.
"""

from dataclasses import dataclass

import numpy as np

from smartspec.sim.world.hardware import BYTES_PER_VALUE, Roofline


@dataclass(frozen=True)
class BlockChain(Roofline):
    """blocks: in a chain, each on a server with the devices given. network, network_seconds: bytes
    per second and latency from one to the next."""

    blocks: int = 4
    network: float = 12.5e9  # 100 Gb/s
    network_seconds: float = 500e-6

    def seconds(
        self, fed_tokens, context_tokens, rows, attended_tokens=None, scored_tokens=None
    ) -> np.ndarray:
        """As Roofline.seconds."""
        computed = super().seconds(fed_tokens, context_tokens, rows, attended_tokens, scored_tokens)
        fed = np.asarray(fed_tokens, dtype=float)
        transfer = self.network_seconds + fed * self.model.hidden * BYTES_PER_VALUE / self.network
        return computed + (self.blocks - 1) * (
            transfer - self._saved(fed, transfer, computed / self.blocks)
        )

    def _saved(
        self, tokens: np.ndarray, transfer: np.ndarray, block: np.ndarray
    ) -> np.ndarray | float:
        """Seconds that speculation saves at each border."""
        return 0.0


@dataclass(frozen=True)
class SpeculatedBlocks(BlockChain):
    """right: chance that a token's output is guessed near enough. Assumed."""

    right: float = 0.9

    def _saved(self, tokens: np.ndarray, transfer: np.ndarray, block: np.ndarray) -> np.ndarray:
        all_right = self.right**tokens
        return np.maximum(all_right * transfer - (1 - all_right) * block, 0.0)
