"""Ragged cached attention for transformers' attention interface.

A step feeds a ragged row of tokens: for each segment (one request) some new tokens at some position
of its slot. Keys and values are written into the slot and attended to there, without a gather. On a
processor our kernel takes the whole batch in one call. Elsewhere torch does: neighbouring slots
share a batched call on a view of the cache, padded to the longest context among them, when a small
cost rule says that pays.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from smartspec.engine.attention.kv_cache import KVCache
from smartspec.engine.attention.sparse_window import SparseWindow
from smartspec.engine.attention.tree_mask import TreeMask, visible_of_slot
from smartspec.engine.kernels.cpu.ragged_attention import CachedLayer, Heads, ragged_attention

ATTENTION_NAME = "smartspec"
T = TypeVar("T")

# One more call costs about as much as attending to this many cached tokens with one query. Measured
# on a CPU with contexts of 256: 40 us a call, 28 us a row. On CUDA a call is about fifteen
# launches, which take the host 60 us; in that time an H100 (3.35 TB/s) reads 20,000 tokens of 8 KiB
# and more of smaller ones. Calculated, not measured.
CALL_OVERHEAD = {"cpu": 360, "cuda": 20_000}
QUERY_COST = 0.25  # of a further query per row, where the first costs 1; measured on a CPU


@dataclass(frozen=True)
class Segment:
    """New tokens of one request: token_ids int32 [n] in places start.. of slot; logits of the last
    num_logits."""

    slot: int
    start: int
    token_ids: np.ndarray
    num_logits: int
    # what they see where they are tokens of a draft tree; None: everything before, and their
    # positions are their places
    tree: TreeMask | None = None
    sparse: SparseWindow | None = None  # what they see of that, None for all; not of trees

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)

    @property
    def positions(self) -> np.ndarray:
        """int64 [n]."""
        return np.arange(self.start, self.end) if self.tree is None else self.tree.positions


@dataclass(frozen=True)
class _Group:
    """Segments of consecutive slots that share one attention call.

    The group's tokens are ragged rows [first_row : first_row + num_rows]. Where all its segments
    are equally long that is all there is to know; else rows, int64 [num_slots * num_queries], says
    which row each padded query takes (padding repeats the segment's last one) and real, int64
    [num_rows], where the true queries lie among the padded ones.
    """

    first_slot: int
    num_slots: int
    num_queries: int
    context: int
    first_row: int
    num_rows: int
    rows: torch.Tensor | None
    real: torch.Tensor | None
    # int64 [num_slots, num_queries], where in its slot each query lies; its position too, but for
    # those of trees
    places: torch.Tensor
    # slots, written: int64 [num_rows], where each row lies
    slots: torch.Tensor
    written: torch.Tensor
    trees: dict[int, TreeMask]  # of the group's slots that feed trees, by their number in the group
    sparse: SparseWindow | None  # of its only segment

    def write(
        self, key: torch.Tensor, value: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Put the group's new keys and values, [num_kv_heads, N, head_dim], into one layer of the
        cache."""
        rows = slice(self.first_row, self.first_row + self.num_rows)
        keys[self.slots, :, self.written] = key[:, rows].transpose(0, 1)
        values[self.slots, :, self.written] = value[:, rows].transpose(0, 1)

    def mask(self, window: int | None, dtype: torch.dtype, group_size: int) -> torch.Tensor:
        """Additive mask [num_slots, 1, group_size * num_queries, places that are read]."""
        device = self.places.device
        is_sparse = window is None and self.sparse is not None
        keys = self._sparse_places if is_sparse else torch.arange(self.context, device=device)
        queries = self.places[:, :, None]
        visible = keys <= queries
        if window is not None:
            visible &= keys > queries - window
        elif is_sparse:
            visible &= self.sparse.is_visible(keys, queries)
        for slot, tree in self.trees.items():
            of_tree = torch.from_numpy(visible_of_slot(tree, self.context, window)).to(device)
            visible[slot, : len(of_tree)] = of_tree
        mask = torch.zeros(visible.shape, dtype=dtype, device=device)
        mask.masked_fill_(~visible, torch.finfo(dtype).min)
        return mask.repeat(1, group_size, 1)[:, None]

    def read(self, cached: torch.Tensor, window: int | None) -> torch.Tensor:
        """The part of one layer's keys or values that is attended to: [num_slots, num_kv_heads,
        places, head_dim]."""
        of_slots = cached[self.first_slot : self.first_slot + self.num_slots]
        if window is None and self.sparse is not None:
            return of_slots[:, :, self._sparse_places]
        return of_slots[:, :, : self.context]

    @cached_property
    def _sparse_places(self) -> torch.Tensor:
        """int64 [places], ascending. Made once: a copy to a device in every layer would wait for
        the layer before."""
        return self.sparse.places(self.context - self.num_queries, self.context).to(
            self.places.device
        )


class AttentionPlan:
    """Everything about a step's attention that is the same in every layer; masks are made once per
    window size.

    segments: in slot order, as they lie in the ragged row. windows: of every layer, its sliding
    window in tokens or None. max_tile_tokens: how many tokens of a request our kernel takes at
    once, 0 where it does not apply and torch attends in groups.
    """

    def __init__(
        self,
        segments: list[Segment],
        cache: KVCache,
        windows: tuple[int | None, ...],
        device: torch.device,
        max_tile_tokens: int,
    ):
        self.cache, self.windows = cache, windows
        self.positions = torch.from_numpy(np.concatenate([s.positions for s in segments])).to(
            device
        )
        self.tiles, self.groups, self.ancestors = None, [], None
        if max_tile_tokens:
            self.tiles = torch.from_numpy(make_tiles(segments, max_tile_tokens))
            ancestors = ancestors_of(segments)
            self.ancestors = (
                None if ancestors is None else torch.from_numpy(ancestors.view(np.int64))
            )
        else:
            runs = _partition(segments, CALL_OVERHEAD[device.type])
            self.groups = [_make_group(segments[a:b], row, device) for a, b, row in runs]
        self._made: dict[Hashable, object] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what make returns, made by the first layer that needs this key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def masks(self, window: int | None, dtype: torch.dtype, group_size: int) -> list[torch.Tensor]:
        key = (window, dtype, group_size)
        return self.once(
            key, lambda: [group.mask(window, dtype, group_size) for group in self.groups]
        )


def make_tiles(segments: list[Segment], max_tokens: int) -> np.ndarray:
    """Tiles of up to max_tokens tokens, int64 [n, 7]: slot, first place, first ragged row, number
    of tokens, base of its tree or -1, and sinks and window, 0 where a token sees all."""
    tiles, row = [], 0
    for segment in segments:
        base = -1 if segment.tree is None else segment.tree.base
        seen = (0, 0) if segment.sparse is None else (segment.sparse.sinks, segment.sparse.window)
        for offset in range(0, segment.num_tokens, max_tokens):
            length = min(max_tokens, segment.num_tokens - offset)
            tiles.append((segment.slot, segment.start + offset, row + offset, length, base, *seen))
        row += segment.num_tokens
    return np.array(tiles, dtype=np.int64)


def ancestors_of(segments: list[Segment]) -> np.ndarray | None:
    """tree_mask's ancestors of every ragged row, uint64 [N], 0 where it is of no tree; None if no
    tree is fed."""
    if all(segment.tree is None for segment in segments):
        return None
    words = [
        np.zeros(s.num_tokens, dtype=np.uint64) if s.tree is None else s.tree.ancestors
        for s in segments
    ]
    return np.concatenate(words)


def _partition(segments: list[Segment], call_overhead: int) -> list[tuple[int, int, int]]:
    """Split segments (in slot order) into runs [a, b) that share a call, with the ragged row each
    run begins at. call_overhead: of a call, in cached tokens."""
    runs, begin, row, first_row = [], 0, 0, 0
    for index in range(1, len(segments) + 1):
        row += segments[index - 1].num_tokens
        if index == len(segments) or not _worth_joining(
            segments[begin:index], segments[index], call_overhead
        ):
            runs.append((begin, index, first_row))
            begin, first_row = index, row
    return runs


def _worth_joining(run: list[Segment], segment: Segment, call_overhead: int) -> bool:
    if segment.slot != run[-1].slot + 1 or segment.sparse or run[-1].sparse:
        return False  # and so every segment between the run's first and last belongs to it
    return (
        _reading_cost([*run, segment])
        <= _reading_cost(run) + _reading_cost([segment]) + call_overhead
    )


def _reading_cost(run: list[Segment]) -> float:
    """The cost of a call beside its overhead, in cached tokens."""
    context = max(s.end for s in run)
    num_queries = max(s.num_tokens for s in run)
    return len(run) * context * (1 + QUERY_COST * (num_queries - 1))


def _make_group(run: list[Segment], first_row: int, device: torch.device) -> _Group:
    lengths = np.array([s.num_tokens for s in run])
    num_queries = int(lengths.max())
    offsets = np.arange(num_queries)[None]
    # A padded query repeats the segment's last real one, so that it never attends to nothing.
    clipped = np.minimum(offsets, lengths[:, None] - 1)
    begins = first_row + np.concatenate([[0], np.cumsum(lengths)[:-1]])
    ragged = bool((lengths != num_queries).any())
    real = np.flatnonzero(offsets < lengths[:, None])

    def placed(numbers: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(numbers).to(device)

    return _Group(
        first_slot=run[0].slot,
        num_slots=len(run),
        num_queries=num_queries,
        context=max(s.end for s in run),
        first_row=first_row,
        num_rows=int(lengths.sum()),
        rows=placed((begins[:, None] + clipped).reshape(-1)) if ragged else None,
        real=placed(real) if ragged else None,
        places=placed(np.array([s.start for s in run])[:, None] + clipped),
        slots=placed(np.repeat([s.slot for s in run], lengths)),
        written=placed(np.concatenate([np.arange(s.start, s.end) for s in run])),
        trees={number: s.tree for number, s in enumerate(run) if s.tree is not None},
        sparse=run[0].sparse,
    )


def cached_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    attention_plan: AttentionPlan,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """query [1, num_heads, N, head_dim]; key, value [1, num_kv_heads, N, head_dim] -> [1, N,
    num_heads, head_dim].

    The signature is transformers' attention interface; attention_plan travels through the model's
    keyword arguments. The window is the plan's: some models pass theirs as an option, others have
    it in their mask alone.
    """
    plan, layer = attention_plan, module.layer_idx
    keys, values, window = plan.cache.keys[layer], plan.cache.values[layer], plan.windows[layer]
    num_heads, num_tokens, head_dim = query.shape[1:]
    num_kv_heads = key.shape[1]
    scale = head_dim**-0.5 if scaling is None else scaling
    output = query.new_empty(num_tokens, num_heads, head_dim)
    if plan.tiles is not None:
        new, cached = Heads(query[0], key[0], value[0]), CachedLayer(keys, values)
        ragged_attention(new, cached, output, plan.tiles, scale, window, plan.ancestors)
        return output[None], None
    # Query heads that share a key head become further query rows: [N, num_kv_heads, group_size,
    # head_dim].
    folded = query[0].transpose(0, 1).unflatten(1, (num_kv_heads, num_heads // num_kv_heads))
    masks = plan.masks(window, query.dtype, num_heads // num_kv_heads)
    for group, mask in zip(plan.groups, masks, strict=True):
        group.write(key[0], value[0], keys, values)
        read = group.read(keys, window), group.read(values, window)
        _attend(group, mask, folded, *read, scale, output.view_as(folded))
    return output[None], None


def _attend(
    group: _Group,
    mask: torch.Tensor,
    folded: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    output: torch.Tensor,
) -> None:
    """keys, values: what is read of them, see _Group.read."""
    rows = slice(group.first_row, group.first_row + group.num_rows)
    query = folded[rows] if group.rows is None else folded[group.rows]
    _, num_kv_heads, group_size, head_dim = query.shape
    shape = (group.num_slots, group.num_queries, num_kv_heads, group_size, head_dim)
    # [slots, kv_heads, group_size * queries, head_dim]
    query = query.reshape(shape).permute(0, 2, 3, 1, 4).flatten(2, 3)
    attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    attended = (
        attended.unflatten(2, (group_size, group.num_queries)).permute(0, 3, 1, 2, 4).flatten(0, 1)
    )
    output[rows] = attended if group.real is None else attended[group.real]


def register_attention() -> None:
    """Make ATTENTION_NAME known to transformers; calling it again changes nothing."""
    AttentionInterface.register(ATTENTION_NAME, cached_attention)
