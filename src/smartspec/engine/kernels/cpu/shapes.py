"""Checks of the shapes that a kernel is told, before it gets the addresses.

A kernel reads and writes memory as if it had the shape it is told. Beyond a tensor that is smaller
lies the memory of other data. Weights, tables and caches are checked once, when a kernel is
prepared for them. What differs by pass is checked in every call.
"""

from typing import NamedTuple

import torch

MAX_GROUP = 256  # heads that share a key head: MAX_ROWS of attention.h
MAX_HEAD_DIM = 256  # attention.h


def fields(kind: type, *names: str) -> list[tuple[str, type]]:
    """Fields of a ctypes structure that follow each other and are of one type."""
    return [(name, kind) for name in names]


class LayerShape(NamedTuple):
    """Sizes of a decoder layer."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    # how many numbers of a head its tables of rotary positions have factors for
    rotary_width: int = 0

    @property
    def num_all_heads(self) -> int:
        """The number of heads of query, key and value."""
        return self.num_heads + 2 * self.num_kv_heads

    def check(self) -> None:
        """Raise ValueError where no kernel computes such a layer."""
        for name, size in self._asdict().items():
            if size < (name != "rotary_width"):
                raise ValueError(f"{name} is {size}, it must be 1 at least")
        if self.num_heads % self.num_kv_heads or self.num_heads // self.num_kv_heads > MAX_GROUP:
            raise ValueError(
                f"{self.num_heads} heads over {self.num_kv_heads} key heads: each key head must "
                f"serve as many heads, {MAX_GROUP} at most"
            )
        if self.head_dim % 2 or self.head_dim > MAX_HEAD_DIM:
            raise ValueError(
                f"head_dim is {self.head_dim}, it must be even and {MAX_HEAD_DIM} at most"
            )
        if self.rotary_width % 2 or self.rotary_width > self.head_dim:
            raise ValueError(
                f"rotary_width is {self.rotary_width}, it must be even and {self.head_dim} at most"
            )


def address(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> int:
    """The address of the tensor, for a kernel that takes it for contiguous memory of this shape and
    dtype. Raises ValueError where it is anything else."""
    if (
        tensor.shape != shape
        or tensor.dtype != dtype
        or not tensor.is_cpu
        or not tensor.is_contiguous()
    ):
        contiguous = "contiguous" if tensor.is_contiguous() else "not contiguous"
        raise ValueError(
            f"{name} must be contiguous {dtype} of shape {tuple(shape)} on the CPU, got "
            f"{tensor.dtype} of {tuple(tensor.shape)} on {tensor.device}, {contiguous}"
        )
    where = tensor.data_ptr()
    if where % tensor.element_size():
        raise ValueError(
            f"{name} lies at {where}, which is no multiple of the {tensor.element_size()} bytes of "
            "a number"
        )
    return where


def optional_address(name: str, tensor: torch.Tensor | None, shape: tuple[int, ...]) -> int | None:
    """The address of a tensor, checked by `address`; None for a tensor that there is none of."""
    return None if tensor is None else address(name, tensor, shape)


def check_ids(name: str, ids: torch.Tensor, num_rows: int) -> None:
    """Raise ValueError where an id, of any number, names none of num_rows rows."""
    if ids.numel():
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= num_rows:
            raise ValueError(f"{name} must lie in 0 to {num_rows - 1}, got {lowest} to {highest}")
