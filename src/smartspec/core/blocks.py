"""KV memory in blocks, and which slot holds the KV of which text.

Every running request has a slot: one contiguous range of max_model_len positions in the KV cache.
Address space is cheap, memory is not. So memory is counted in blocks of block_size tokens, and a
slot holds only as many as its text needs. It is contiguous in virtual memory and paged in physical
memory (vAttention, arXiv 2405.04437). A slot whose request ended keeps its blocks as a cached
prefix until they are needed; a new request whose prompt starts with the same tokens reuses them.

Invariant: the blocks held by all slots plus the free ones are all blocks there are.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from smartspec.core.origin import key_of

NO_TOKENS = np.empty(0, dtype=np.int32)


@dataclass(frozen=True)
class PrefixCopy:
    """Copy the KV of the first num_tokens tokens from one slot to another."""

    source_slot: int
    target_slot: int
    num_tokens: int


@dataclass(frozen=True)
class Trim:
    """Everything in the slot from token num_tokens on may be given back to the system."""

    slot: int
    num_tokens: int


@dataclass(frozen=True)
class Wipe:
    """Overwrite the positions of a slot from start up to num_tokens with zeros: a NaN would survive
    the mask that hides it."""

    slot: int
    num_tokens: int
    start: int = 0


MemoryOp = PrefixCopy | Trim | Wipe


@dataclass(frozen=True)
class Prefix:
    """The best cached prefix of a text: its first num_tokens tokens lie in slot; cached: no request
    runs there."""

    slot: int
    num_tokens: int
    cached: bool


class CachedText(NamedTuple):
    """The text whose KV a slot without a request holds: token_ids, int32 [L], for requests of this
    cache_salt."""

    token_ids: np.ndarray
    cache_salt: str


class BlockManager:
    """Counts blocks per slot and remembers cached texts.

    num_blocks: blocks of block_size tokens in all. num_slots: most requests that can run at once.
    The memory operations that follow from decisions are collected in order; the scheduler hands
    them to the executor with the next batch.
    """

    def __init__(self, num_blocks: int, block_size: int, num_slots: int):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_slots = num_slots
        self.num_free_blocks = num_blocks
        # Blocks a running request could still get: free ones and those of cached prefixes.
        self.num_available_blocks = num_blocks
        self._held = [0] * num_slots
        self._in_use = [False] * num_slots
        # Insertion order is age: of one key's the first is evicted first.
        self._cached: dict[int, CachedText] = {}
        self._memory_ops: list[MemoryOp] = []

    @property
    def num_used_blocks(self) -> int:
        """Blocks held by running requests (cached prefixes not counted)."""
        return self.num_blocks - self.num_available_blocks

    @property
    def num_available_slots(self) -> int:
        return self._in_use.count(False)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that num_tokens tokens occupy."""
        return -(-num_tokens // self.block_size)

    def room_for(self, slot: int) -> int:
        """Tokens the slot could hold if it took every available block."""
        return (self._held[slot] + self.num_available_blocks) * self.block_size

    def find_cached_prefix(self, token_ids: np.ndarray, cache_salt: str = "") -> Prefix | None:
        """The cached text of this salt that shares the longest prefix with token_ids (int32 [L]),
        None if none shares a block."""
        best = None
        first = token_ids.item(0) if len(token_ids) else None
        for slot, (text, salt) in self._cached.items():
            # much cheaper to see than how far two texts agree
            if text.item(0) != first or salt != cache_salt:
                continue
            num_shared = common_prefix(text, token_ids)
            if num_shared >= self.block_size and (best is None or num_shared > best.num_tokens):
                best = Prefix(slot, num_shared, cached=True)
        return best

    def acquire(self, prefix: Prefix | None, num_tokens: int) -> int:
        """Take a slot for a text of num_tokens tokens, filled with its prefix if there is one.

        There must be an available slot. A cached slot that is mostly this prefix is taken over as
        it is; else the prefix is copied into an empty slot, or into a cached one (_first_to_go).
        What a cached slot holds beyond num_tokens is given back; the rest stays, because the text
        will need it and new memory costs page faults.
        """
        slot = (
            prefix.slot
            if prefix is not None and self._worth_taking_over(prefix)
            else self._emptiest_slot()
        )
        self._cached.pop(slot, None)
        self._in_use[slot] = True
        self.num_available_blocks -= self._held[slot]
        self._trim(slot, num_tokens)
        if prefix is not None and prefix.slot != slot:
            self._copy_prefix(prefix, slot)
        return slot

    def grow(self, slot: int, num_tokens: int) -> bool:
        """Hold enough blocks for num_tokens tokens, evicting cached prefixes; False if there are
        not enough."""
        num_missing = self.blocks_for(num_tokens) - self._held[slot]
        if num_missing <= 0:
            return True
        if num_missing > self.num_available_blocks:
            return False
        while num_missing > self.num_free_blocks:
            self._evict_oldest()
        self.num_free_blocks -= num_missing
        self.num_available_blocks -= num_missing
        self._held[slot] += num_missing
        return True

    def shrink(self, slot: int, num_tokens: int) -> None:
        """Give back the blocks after the first num_tokens tokens.

        No memory operation follows: these are lookahead blocks of rejected drafts, which the slot
        will soon need again.
        """
        num_extra = self._held[slot] - self.blocks_for(num_tokens)
        if num_extra > 0:
            self._held[slot] -= num_extra
            self.num_free_blocks += num_extra
            self.num_available_blocks += num_extra if self._in_use[slot] else 0

    def release(self, slot: int, computed_token_ids: np.ndarray, cache_salt: str = "") -> None:
        """The request is gone; its computed text (int32 [L]) stays as a cached prefix for requests
        of its salt."""
        assert self._in_use[slot], f"slot {slot} is not in use"
        self.shrink(slot, len(computed_token_ids))
        self._in_use[slot] = False
        self.num_available_blocks += self._held[slot]
        if len(computed_token_ids):
            self._cached[slot] = CachedText(computed_token_ids.copy(), cache_salt)

    def discard(self, slot: int) -> None:
        """The request is gone, and nothing of what its slot holds may be read again."""
        self._memory_ops += [Wipe(slot, self._held[slot] * self.block_size), Trim(slot, 0)]
        self.release(slot, NO_TOKENS)

    def reset(self) -> None:
        """Memory operations may be lost, so no slot is known to hold its text: forget them all.
        None may be in use."""
        assert not any(self._in_use), "release every slot first"
        for slot in self._cached:
            self.shrink(slot, 0)
        self._cached.clear()
        self._memory_ops = [Trim(slot, 0) for slot in range(self.num_slots)]

    def take_memory_ops(self) -> tuple[MemoryOp, ...]:
        """The memory operations decided since the last call, in the order in which they must
        happen."""
        ops, self._memory_ops = tuple(self._memory_ops), []
        return ops

    def _worth_taking_over(self, prefix: Prefix) -> bool:
        return prefix.cached and 2 * prefix.num_tokens >= len(self._cached[prefix.slot].token_ids)

    def _emptiest_slot(self) -> int:
        """The lowest empty slot (dense slots make attention batches regular), else a cached one."""
        empty = (s for s in range(self.num_slots) if not self._in_use[s] and s not in self._cached)
        slot = next(empty, None)
        return self._first_to_go([1] * self.num_slots) if slot is None else slot

    def _trim(self, slot: int, num_tokens: int) -> None:
        """Give back blocks and the memory under them."""
        if self._held[slot] > self.blocks_for(num_tokens):
            self.shrink(slot, num_tokens)
            self._memory_ops.append(Trim(slot, num_tokens))

    def _copy_prefix(self, prefix: Prefix, slot: int) -> None:
        if prefix.cached:
            self._cached[prefix.slot] = self._cached.pop(prefix.slot)  # now the most recently used
        # The copy is noted before blocks are found for it: making room may evict the source, and
        # order decides.
        self._memory_ops.append(PrefixCopy(prefix.slot, slot, prefix.num_tokens))
        grown = self.grow(slot, prefix.num_tokens)
        assert grown, "the scheduler admits a request only when its blocks are available"

    def _evict_oldest(self) -> None:
        slot = self._first_to_go(self._held)
        del self._cached[slot]
        self._trim(slot, 0)

    def _first_to_go(self, sizes: Sequence[int]) -> int:
        """The longest-unused cached slot of the API key that has most cached, by these sizes of the
        slots. So no key loses a text while another one has more."""
        size_of_key: Counter[str] = Counter()
        for slot, text in self._cached.items():
            size_of_key[key_of(text.cache_salt)] += sizes[slot]
        ((key, _),) = size_of_key.most_common(1)
        return next(slot for slot, text in self._cached.items() if key_of(text.cache_salt) == key)


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the longest common prefix of two token arrays."""
    length = min(len(a), len(b))
    is_different = a[:length] != b[:length]
    first = int(is_different.argmax()) if length else 0
    return first if length and is_different[first] else length
