"""Early exits from a model: passes through its first layers alone, and what these computed, for the layers above."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from smartspec.engine.attention.ragged import Segment


@dataclass(frozen=True)
class ExitRows:
    """The results of the first num_layers layers for token_ids, int32 [n], in places start.. of a slot: hidden,
    [n, hidden_size]."""

    num_layers: int
    start: int
    token_ids: np.ndarray
    hidden: torch.Tensor

    def followed_by(self, segment: Segment, hidden: torch.Tensor) -> "ExitRows":
        """The same and the rows of a segment that begins where they end."""
        token_ids = np.concatenate([self.token_ids, segment.token_ids])
        return ExitRows(self.num_layers, self.start, token_ids, torch.cat([self.hidden, hidden]))

    def num_shared(self, segment: Segment) -> int:
        """First tokens of the segment that are these."""
        if segment.start != self.start or segment.tree is not None or segment.sparse is not None:
            return 0
        num = min(len(self.token_ids), segment.num_tokens)
        differs = np.flatnonzero(self.token_ids[:num] != segment.token_ids[:num])
        return int(differs[0]) if len(differs) else num


class ExitMemory:
    """Rows that passes through the first layers left, by slot, until the step's verification has read them."""

    def __init__(self):
        self._rows: dict[int, ExitRows] = {}

    def clear(self) -> None:
        self._rows.clear()

    def add(self, segments: Sequence[Segment], num_layers: int, hidden: Sequence[torch.Tensor]) -> None:
        """hidden: of each segment, what the first num_layers layers computed, [num_tokens, hidden_size]."""
        for segment, rows in zip(segments, hidden, strict=True):
            new = ExitRows(num_layers, segment.start, segment.token_ids, rows)
            old = self._rows.get(segment.slot)
            goes_on = old is not None and old.num_layers == num_layers
            goes_on = goes_on and old.start + len(old.token_ids) == segment.start
            self._rows[segment.slot] = old.followed_by(segment, rows) if goes_on else new

    def of(self, segments: Sequence[Segment]) -> dict[int, tuple[int, ExitRows]]:
        """The number and the rows of first tokens that have been computed, by the number of their segment. All of one
        exit: rows of others are left out."""
        found: dict[int, tuple[int, ExitRows]] = {}
        for number, segment in enumerate(segments):
            rows = self._rows.get(segment.slot)
            if rows is None or not (num := rows.num_shared(segment)):
                continue
            if not found or rows.num_layers == next(iter(found.values()))[1].num_layers:
                found[number] = num, rows
        return found


@contextmanager
def first_layers(model: nn.Module, num_layers: int) -> Iterator[None]:
    """A pass inside the block ends after so many layers: their output goes to the final norm and the output embedding.
    For models of transformers, which read in every pass how many layers they have."""
    config = model.config.get_text_config()
    num_all, config.num_hidden_layers = config.num_hidden_layers, num_layers
    try:
        yield
    finally:
        config.num_hidden_layers = num_all
