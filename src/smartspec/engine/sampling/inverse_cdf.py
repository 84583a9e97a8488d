"""Drawing from distributions by inverse cumulated probability, in float64, with the same bits in
every batch."""

import numpy as np
import torch

_CDF_BLOCK = 256


def sample_from_probs(probs: torch.Tensor, u: np.ndarray) -> torch.Tensor:
    """Token ids int64 [N] by inverse CDF in float64: the first token whose cumulated probability
    exceeds u * total.

    probs: [N, V], at least 0, some mass in every row, need not sum to 1. u: float64 [N] in [0, 1).
    A token of probability 0 is never returned. Searches blocks of the vocabulary, then inside one:
    no [N, V] array in float64.
    """
    vocabulary_size = probs.shape[-1]
    block_mass = _block_mass(probs)
    block_size = min(_CDF_BLOCK, vocabulary_size)
    mass_wanted = torch.from_numpy(u).to(probs.device).unsqueeze(1) * block_mass.sum(
        dim=-1, keepdim=True
    )
    block = _first_above(block_mass, mass_wanted)
    mass_wanted = mass_wanted - (block_mass.cumsum(dim=-1) - block_mass).gather(1, block)
    token_ids = block * block_size + torch.arange(block_size, device=probs.device)
    in_block = probs.gather(1, token_ids.clamp(max=vocabulary_size - 1)).double() * (
        token_ids < vocabulary_size
    )
    return (block * block_size + _first_above(in_block, mass_wanted)).squeeze(-1)


def _block_mass(probs: torch.Tensor) -> torch.Tensor:
    """Sums of the blocks of each row, and of what is left after them: float64 [N, blocks + 1]."""
    vocabulary_size = probs.shape[-1]
    block_size = min(_CDF_BLOCK, vocabulary_size)
    num_blocks = vocabulary_size // block_size
    blocks = probs[:, : num_blocks * block_size].unflatten(-1, (num_blocks, block_size))
    rest = probs[:, num_blocks * block_size :]
    return torch.cat(
        [
            blocks.sum(dim=-1, dtype=torch.float64),
            rest.sum(dim=-1, keepdim=True, dtype=torch.float64),
        ],
        dim=-1,
    )


def mass_of(probs: torch.Tensor) -> torch.Tensor:
    """Sum of each row, float64 [N, 1], with the same bits in every batch: of a row that is alone
    torch sums parts by several threads, and those of a batch from end to end."""
    return _block_mass(probs).sum(dim=-1, keepdim=True)


def _first_above(mass: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """First column [N, 1] that has mass and whose cumulated mass exceeds wanted [N, 1]; else the
    last that has mass.

    The second case is rounding (u next to 1, or a block's sum above the sum of its parts). Mass is
    required because a parallel cumulated sum may creep up over a column without any.
    """
    has_mass = mass > 0
    above = has_mass & (mass.cumsum(dim=-1) > wanted)
    columns = torch.arange(mass.shape[-1], device=mass.device)
    last = torch.where(has_mass, columns, 0).amax(dim=-1, keepdim=True)
    first = above.to(torch.int8).argmax(dim=-1, keepdim=True)
    return torch.where(above.any(dim=-1, keepdim=True), first, last)
