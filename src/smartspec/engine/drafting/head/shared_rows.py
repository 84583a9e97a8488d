"""Rows of the target's output embedding, for a head that brings none of its own."""

import torch
from torch import nn

from smartspec.engine.models.quantized import unpacked

COLUMNS = 64  # read at once: of a vocabulary of 128k tokens 32 MiB


@torch.no_grad()
def output_rows(output: nn.Module, ids: torch.Tensor) -> nn.Linear:
    """The linear layer of these rows, int64 [n], of an output embedding in whatever form it is
    served: panels and blocks have no plain weight to read, so it is what the layer makes of unit
    vectors, which is exact where no inputs are rounded.

    Raises ValueError where it has a bias."""
    if getattr(output, "bias", None) is not None:
        raise ValueError(
            "the head has no output embedding (lm_head) and the target's has a bias, which heads "
            "do not share: use a head with one of its own"
        )
    weight = output.weight  # its shape, dtype and device; of most forms no values
    units = torch.eye(weight.shape[1], dtype=weight.dtype, device=ids.device).split(COLUMNS)
    with unpacked(output):
        columns = [output(unit[None])[0][:, ids].T for unit in units]
    rows = nn.Linear(weight.shape[1], len(ids), bias=False, device="meta")
    rows.weight = nn.Parameter(torch.cat(columns, dim=1).contiguous(), requires_grad=False)
    return rows
