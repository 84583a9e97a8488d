"""Moving memory into huge pages: what it holds stays, and where the system allows it the pages
become huge."""

import mmap
import platform
import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from smartspec.engine.attention.kv_cache import KVCache
from smartspec.engine.runtime import huge_pages
from smartspec.engine.runtime.huge_pages import HUGE_PAGE, collapse_pages

SETTING = huge_pages._SETTING.read_text() if huge_pages._SETTING.is_file() else ""
CAN_COLLAPSE = tuple(map(int, re.findall(r"\d+", platform.release())[:2])) >= (6, 1) and any(
    f"[{choice}]" in SETTING for choice in ("always", "madvise")
)
BEGINS_SMALL = "[madvise]" in SETTING  # else memory is in huge pages from the start


def huge_bytes(address: int) -> int:
    """In huge pages, of the mapping that holds this address."""
    return _bytes("AnonHugePages", address)


def resident_bytes(address: int) -> int:
    """Of the mapping that holds this address, be it in memory or swapped out."""
    return _bytes("Rss", address) + _bytes("Swap", address)


def _bytes(field: str, address: int) -> int:
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("no such mapping")


@pytest.mark.skipif(not CAN_COLLAPSE, reason="this system cannot collapse pages on request")
def test_memory_becomes_huge_pages_keeps_its_contents_and_does_not_grow():
    mapping = mmap.mmap(-1, 64 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_NOHUGEPAGE, 0, 32 * HUGE_PAGE)  # who refuses is left alone
    numbers = np.frombuffer(mapping, dtype=np.int64)
    refusing, address = numbers.ctypes.data, numbers.ctypes.data + 40 * HUGE_PAGE
    used = numbers[: 48 * HUGE_PAGE // 8]
    used[:] = np.arange(len(used))
    numbers[48 * HUGE_PAGE // 8 :: HUGE_PAGE // 16] = 1  # two pages of each of the last 16
    if BEGINS_SMALL:
        assert huge_bytes(address) == 0
    assert sum(1 for _ in collapse_pages()) >= 16
    assert huge_bytes(address) >= HUGE_PAGE  # on a full machine most may have no place to go
    if BEGINS_SMALL:
        assert huge_bytes(address) <= 16 * HUGE_PAGE
    assert huge_bytes(refusing) == 0
    assert np.array_equal(used, np.arange(len(used)))


@pytest.mark.skipif(not CAN_COLLAPSE, reason="this system cannot collapse pages on request")
def test_kv_memory_stays_in_small_pages_which_are_taken_and_given_back_one_by_one():
    # 2 MiB per head
    sizes = {"num_layers": 2, "num_slots": 3, "num_kv_heads": 2, "max_len": 8192, "head_dim": 64}
    cache = KVCache(**sizes, dtype=torch.float32, device=torch.device("cpu"))
    for slot in range(3):
        cache.write_ones(slot, 0, 7000)
    before = resident_bytes(cache.keys[0].data_ptr())
    for _ in collapse_pages():
        pass
    assert resident_bytes(cache.keys[0].data_ptr()) == before > 0


@pytest.mark.parametrize("setting", ["always madvise [never]\n", None])
def test_does_nothing_where_huge_pages_are_forbidden_or_unknown(setting, tmp_path, monkeypatch):
    file = tmp_path / "enabled"
    if setting is not None:
        file.write_text(setting)
    monkeypatch.setattr(huge_pages, "_SETTING", file)
    assert list(islice(collapse_pages(), 1)) == []
