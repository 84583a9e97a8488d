"""Block accounting: blocks always balance, and a reused prefix is really in the slot it is said to
be in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartspec.core.blocks import BlockManager, Prefix, PrefixCopy, Trim, Wipe


def text(*token_ids: int) -> np.ndarray:
    return np.array(token_ids, dtype=np.int32)


def cache(blocks: BlockManager, first: int, num_blocks: int = 1, salt: str = "") -> int:
    """A request of that salt comes and goes, whose text begins with that token; returns its
    slot."""
    token_ids = text(*range(first, first + num_blocks * blocks.block_size))
    slot = blocks.acquire(None, len(token_ids))
    assert blocks.grow(slot, len(token_ids))
    blocks.release(slot, token_ids, salt)
    return slot


def check_balance(blocks: BlockManager) -> None:
    assert sum(blocks._held) + blocks.num_free_blocks == blocks.num_blocks
    assert all(held >= 0 for held in blocks._held)
    assert blocks.num_free_blocks >= 0
    assert not any(blocks._in_use[slot] for slot in blocks._cached)
    empty = [
        s for s in range(blocks.num_slots) if not blocks._in_use[s] and s not in blocks._cached
    ]
    assert all(blocks._held[slot] == 0 for slot in empty)


def test_grow_until_full_and_give_back():
    blocks = BlockManager(num_blocks=4, block_size=16, num_slots=2)
    first, second = blocks.acquire(None, 1), blocks.acquire(None, 1)
    assert blocks.grow(first, 33)
    assert blocks.num_free_blocks == 1
    assert not blocks.grow(second, 17)
    assert blocks.num_free_blocks == 1, "a refused request changes nothing"
    blocks.shrink(first, 16)
    assert blocks.grow(second, 48)
    assert blocks.num_free_blocks == 0


def test_ended_text_stays_cached_until_its_blocks_are_needed():
    blocks = BlockManager(num_blocks=4, block_size=4, num_slots=3)
    slot = cache(blocks, 1, num_blocks=2)
    assert blocks.find_cached_prefix(text(1, 2, 3, 4, 9)) == Prefix(slot, 4, cached=True)
    assert blocks.find_cached_prefix(text(1, 2, 9)) is None, "less than a block is not worth it"
    other = blocks.acquire(None, 16)
    assert other != slot, "an empty slot is taken before a cached one"
    assert blocks.grow(other, 16)
    assert blocks.find_cached_prefix(text(1, 2, 3, 4)) is None
    assert Trim(slot, 0) in blocks.take_memory_ops()


def test_mostly_shared_text_is_taken_over_and_partly_shared_text_is_copied():
    blocks = BlockManager(num_blocks=10, block_size=2, num_slots=2)
    slot = cache(blocks, 0, num_blocks=4)
    copied = blocks.acquire(Prefix(slot, 2, cached=True), 2)
    assert copied != slot
    assert blocks.take_memory_ops() == (PrefixCopy(slot, copied, 2),)
    blocks.release(copied, text(0, 1))
    taken = blocks.acquire(Prefix(slot, 6, cached=True), 6)
    assert taken == slot
    assert blocks.take_memory_ops() == (Trim(slot, 6),)
    check_balance(blocks)


def test_source_of_a_copy_may_be_evicted_by_it():
    blocks = BlockManager(num_blocks=3, block_size=2, num_slots=2)
    slot = cache(blocks, 0, num_blocks=3)
    copied = blocks.acquire(Prefix(slot, 2, cached=True), 2)
    assert blocks.take_memory_ops() == (PrefixCopy(slot, copied, 2), Trim(slot, 0)), (
        "copied first, then given back"
    )
    check_balance(blocks)


def test_a_discarded_slot_is_wiped_trimmed_and_never_found_again():
    blocks = BlockManager(num_blocks=4, block_size=2, num_slots=2)
    slot = blocks.acquire(None, 1)
    blocks.grow(slot, 5)
    blocks.discard(slot)
    assert blocks.take_memory_ops() == (Wipe(slot, 6), Trim(slot, 0))
    assert blocks.find_cached_prefix(text(*range(6))) is None
    assert blocks.num_free_blocks == blocks.num_available_blocks == 4
    check_balance(blocks)


def test_a_reset_forgets_texts_and_copies_that_may_never_have_happened():
    blocks = BlockManager(num_blocks=10, block_size=2, num_slots=2)
    slot = cache(blocks, 0, num_blocks=4)
    copied = blocks.acquire(Prefix(slot, 2, cached=True), 2)
    blocks.release(copied, text(0, 1))
    blocks.reset()
    assert blocks.find_cached_prefix(text(*range(8))) is None
    assert blocks.take_memory_ops() == (Trim(0, 0), Trim(1, 0))
    assert blocks.num_free_blocks == blocks.num_available_blocks == 10


operations = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "grow", "shrink", "release", "discard", "reset"]),
        st.integers(0, 5),
        st.integers(0, 30),
    ),
    max_size=60,
)


@given(operations, st.integers(1, 12), st.integers(1, 4), st.integers(1, 4))
def test_blocks_balance_under_any_sequence(operations, num_blocks, block_size, num_slots):
    blocks = BlockManager(num_blocks, block_size, num_slots)
    in_use: dict[int, np.ndarray] = {}
    for name, which, num_tokens in operations:
        slots = sorted(in_use)
        if name == "acquire" and blocks.num_available_slots:
            token_ids = np.full(num_tokens, which % 2, dtype=np.int32)
            prefix = blocks.find_cached_prefix(token_ids)
            slot = blocks.acquire(prefix, num_tokens)
            assert slot not in in_use
            in_use[slot] = token_ids[: prefix.num_tokens] if prefix else token_ids[:0]
        elif name == "grow" and slots:
            slot = slots[which % len(slots)]
            room = blocks.room_for(slot)
            length = max(num_tokens, len(in_use[slot]))
            grown = blocks.grow(slot, length)
            assert grown == (blocks.blocks_for(length) * block_size <= room)
            if grown:
                in_use[slot] = np.resize(np.append(in_use[slot], np.int32(which % 2)), length)
        elif name == "shrink" and slots:
            slot = slots[which % len(slots)]
            in_use[slot] = in_use[slot][:num_tokens]
            blocks.shrink(slot, len(in_use[slot]))
        elif name == "release" and slots:
            slot = slots[which % len(slots)]
            blocks.release(slot, in_use.pop(slot))
        elif name == "discard" and slots:
            slot = slots[which % len(slots)]
            blocks.discard(slot)
            del in_use[slot]
        elif name == "reset":
            for slot in slots:
                blocks.release(slot, in_use.pop(slot))
            blocks.reset()
            assert blocks.num_free_blocks == blocks.num_available_blocks == num_blocks
        check_balance(blocks)
        assert blocks.num_used_blocks == sum(blocks._held[slot] for slot in in_use)


def is_cached(blocks: BlockManager, first: int, salt: str = "") -> bool:
    return (
        blocks.find_cached_prefix(text(*range(first, first + blocks.block_size)), salt) is not None
    )


@pytest.mark.parametrize(
    ("num_slots", "num_blocks"), [(4, 100), (100, 8)], ids=["few slots", "few blocks"]
)
def test_a_key_that_has_more_cached_makes_room_in_its_own(num_slots, num_blocks):
    """Whatever salts it names, and however long the text of the other key is unused."""
    blocks = BlockManager(num_blocks, block_size=4, num_slots=num_slots)
    cache(blocks, 1000, num_blocks=2, salt="b")
    for number in range(200):
        cache(blocks, 2000 + 10 * number, salt=f"a {number}")
        check_balance(blocks)
    assert is_cached(blocks, 1000, "b")
    assert is_cached(blocks, 2000 + 10 * 199, "a 199") and not is_cached(blocks, 2000, "a 0")


def test_of_one_key_the_longest_unused_goes_first():
    blocks = BlockManager(100, block_size=4, num_slots=2)
    for first in (100, 200, 300):
        cache(blocks, first)
    assert [is_cached(blocks, first) for first in (100, 200, 300)] == [False, True, True]
