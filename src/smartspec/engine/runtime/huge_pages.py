"""Moves what the process holds into huge pages, little by little, while there is nothing else to
do.

A step reads all weights and, between them, what these have pushed out of the caches: the
interpreter's objects, code and tables of oneDNN. In pages of 4 KiB most such reads first search the
page tables for their address. In pages of 2 MiB they do not. Linux gives huge pages only to memory
that is marked for them, which malloc does not do. Moving 2 MiB takes milliseconds. The two seconds
for all memory would be too long at every start; a server that waits has them.
"""

import ctypes
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

HUGE_PAGE = 2 << 20  # bytes
MIN_RESIDENT = 0.75  # of a huge page; memory that was never touched would be taken for the rest
MADV_COLLAPSE = 25  # Linux 6.1
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPPINGS = Path("/proc/self/maps")
_ANONYMOUS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p 0+ 00:00 0 *(?:\[heap\])?$", re.MULTILINE)


def collapse_pages() -> Iterator[None]:
    """Collapse all private memory the process now holds; yields after every 2 MiB.

    Does nothing where the system cannot, or where its owner forbids huge pages.
    """
    if not _SETTING.is_file() or "[never]" in _SETTING.read_text():
        return
    system = ctypes.CDLL(None)
    system.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    system.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    pages = ctypes.create_string_buffer(HUGE_PAGE // mmap.PAGESIZE)
    for first, last in _ANONYMOUS.findall(_MAPPINGS.read_text()):
        begin = -(-int(first, 16) // HUGE_PAGE) * HUGE_PAGE
        for address in range(begin, int(last, 16) - HUGE_PAGE + 1, HUGE_PAGE):
            # Either call fails where the mapping has gone meanwhile; then nothing is done.
            is_there = system.mincore(address, HUGE_PAGE, pages) == 0
            if is_there and pages.raw.count(1) >= MIN_RESIDENT * len(pages):
                system.madvise(address, HUGE_PAGE, MADV_COLLAPSE)
            yield
