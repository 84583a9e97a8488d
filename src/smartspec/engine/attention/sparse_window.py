"""Attention to the first tokens of a text and the newest ones alone (StreamingLLM, arXiv
2309.17453)."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SparseWindow:
    """A token sees the first `sinks` places of its slot and `window` places up to its own. Layers
    that have a sliding window themselves keep that, as it does not grow with the text either.
    ValueError where either is not positive."""

    sinks: int
    window: int

    def __post_init__(self):
        if min(self.sinks, self.window) < 1:
            raise ValueError(
                f"sinks and window must be at least 1, got {self.sinks} and {self.window}"
            )

    @property
    def num_places(self) -> int:
        """Most places that one token sees."""
        return self.sinks + self.window

    def places(self, start: int, end: int) -> torch.Tensor:
        """The places that tokens at start..end - 1 see together, ascending: int64 [n]."""
        first = max(self.sinks, start + 1 - self.window)
        return torch.cat([torch.arange(min(self.sinks, end)), torch.arange(min(first, end), end)])

    def is_visible(self, places: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        """The places (up to their own) that queries see: bool, both int64 and broadcast."""
        return (places < self.sinks) | (places > queries - self.window)
