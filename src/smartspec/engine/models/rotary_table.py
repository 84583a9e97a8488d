"""Rotary position embeddings by table: what a model's module computes of a position, looked up.

Why: with one token of a small model its ten small operations take as long as half a decoder layer.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

MAX_BYTES = 16 << 20

# (hidden states [1, N, hidden_size], positions [1, N]) -> cosine and sine [1, N, width]
Rotary = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class RotaryTable:
    """cosine, sine: [positions, width]. Called as the module is that it was made of."""

    cosine: torch.Tensor
    sine: torch.Tensor

    def __call__(
        self, hidden: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.cosine.index_select(0, positions[0])[None], self.sine.index_select(
            0, positions[0]
        )[None]


def side_by_side(rotaries: tuple[Rotary, ...]) -> Rotary:
    """All of these as one: the cosines and the sines of a position one after the other, [1, N,
    their widths]."""
    if len(rotaries) == 1:
        return rotaries[0]

    def joined(hidden: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cosines, sines = zip(*(rotary(hidden, positions) for rotary in rotaries), strict=True)
        return torch.cat(cosines, dim=-1), torch.cat(sines, dim=-1)

    return joined


@torch.inference_mode()
def rotary_table(rotary: Rotary, num_positions: int) -> RotaryTable | None:
    """The factors of positions 0 to num_positions - 1; None where they would take more than
    MAX_BYTES, or those of a position depend on the others of the pass, as where long texts stretch
    the frequencies."""
    hidden = torch.empty(1, 1, 1)  # of it the dtype and the device are read
    alone = {
        p: rotary(hidden, torch.tensor([[p]]))
        for p in (num_positions - 1, num_positions // 2, min(1, num_positions - 1), 0)
    }
    if 2 * alone[0][0].nbytes * num_positions > MAX_BYTES:
        return None
    table = RotaryTable(
        *(factors[0] for factors in rotary(hidden, torch.arange(num_positions)[None]))
    )
    found = {p: table(hidden, torch.tensor([[p]])) for p in alone}
    return table if all(all(map(torch.equal, found[p], alone[p])) for p in alone) else None
