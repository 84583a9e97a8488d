"""CUDA machine code in shared libraries: what other cards need is overwritten with zeros, which
compress to nothing.

A section of an ELF file holds containers, one for each compiled source. A container holds entries:
machine code of one architecture, or PTX, from which a driver compiles. The layout was read off
files that nvcc 13 has written; NVIDIA does not document it. So a library is refused where anything
else is found.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
MAGIC = 0xBA55ED50
PTX, MACHINE_CODE = 1, 2
COMPRESSED = 0xA000  # flags of an entry whose content cannot be looked into


@dataclass(frozen=True)
class Entry:
    """start: of its header. content, end: of what the header describes. All are offsets in the
    library."""

    kind: int
    arch: int
    is_compressed: bool
    start: int
    content: int
    end: int


def sections(data: bytes, base: int = 0) -> Iterator[tuple[bytes, int, int]]:
    """Name, offset and size of each section of the 64-bit ELF file that begins at `base`."""
    (table,) = struct.unpack_from("<Q", data, base + 0x28)
    size, count, names = struct.unpack_from("<HHH", data, base + 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", data, base + table + i * size) for i in range(count)]
    for head in heads:
        name = base + heads[names][4] + head[0]
        yield bytes(data[name : data.index(b"\0", name)]), base + head[4], head[5]


def containers(data: bytes) -> Iterator[tuple[int, list[Entry]]]:
    """Offset and entries of each container. ValueError where something else stands."""
    for name, at, size in sections(data):
        end = at + size
        while name in SECTIONS and at < end:
            magic, _, header, length = struct.unpack_from("<IHHQ", data, at)
            if magic == MAGIC:
                yield at, list(_entries(data, at + header, at + header + length))
                at += header + length
            elif magic == 0:  # padding
                at += 8 - at % 8
            else:
                raise ValueError(f"no container of machine code at {at:#x}: {magic:#x}")


def _entries(data: bytes, at: int, end: int) -> Iterator[Entry]:
    while at < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
        (arch,) = struct.unpack_from("<I", data, at + 28)
        (flags,) = struct.unpack_from("<Q", data, at + 40)
        if kind not in (PTX, MACHINE_CODE) or at + header + size > end:
            raise ValueError(f"no entry of machine code at {at:#x}")
        yield Entry(kind, arch, bool(flags & COMPRESSED), at, at + header, at + header + size)
        at += header + size


def kernels(data: bytes, entry: Entry) -> list[str]:
    """Mangled names of the kernels of an entry; none where it cannot be looked into."""
    if entry.kind != MACHINE_CODE or entry.is_compressed:
        return []
    found = [name.decode() for name, _, _ in sections(data, entry.content)]
    return [name.removeprefix(".text.") for name in found if name.startswith(".text.")]


def prune(
    data: bytearray, arch: int, kernel: str | None = None, with_ptx: bool = True
) -> tuple[int, int]:
    """Removes in place what a card of this architecture (90 for sm_90) does not run. Bytes that
    stay, and that go.

    kernel: pattern; of code that can be looked into, only entries with such a kernel stay.
    with_ptx: a container without code for the card keeps the newest PTX that fits it."""
    stay = go = 0
    for start, entries in containers(data):
        keep = [entry for entry in entries if entry.kind == MACHINE_CODE and entry.arch == arch]
        if not keep and with_ptx:
            fitting = [entry for entry in entries if entry.kind == PTX and entry.arch <= arch]
            keep = sorted(fitting, key=lambda entry: entry.arch)[-1:]
        if kernel is not None:
            keep = [
                e
                for e in keep
                if not (names := kernels(data, e)) or any(re.search(kernel, n) for n in names)
            ]
        before = sum(entry.end - entry.start for entry in entries)
        after = sum(entry.end - entry.start for entry in keep)
        if entries:
            _rewrite(data, start, entries, keep)
        stay, go = stay + after, go + before - after
    return stay, go


def _rewrite(data: bytearray, start: int, entries: list[Entry], keep: list[Entry]) -> None:
    """A container of these entries alone, and zeros up to its former end. An empty one keeps its
    entries' headers, as the library names the container when it is loaded."""
    if not keep:
        for entry in entries:
            data[entry.content : entry.end] = bytes(entry.end - entry.content)
        return
    first, last = entries[0].start, entries[-1].end
    content = b"".join(bytes(data[entry.start : entry.end]) for entry in keep)
    data[first:last] = content + bytes(last - first - len(content))
    struct.pack_into("<Q", data, start + 8, len(content))
