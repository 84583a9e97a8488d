"""A bundle for a GPU without a network: which machine code it keeps, which packages, which
arguments it refuses."""

import struct
import tarfile
import zipfile

import gpu_bundle
import pytest
from lib.gpu.fatbin import MACHINE_CODE, PTX, containers, kernels, prune
from lib.gpu.packages import PACKAGES
from lib.gpu.unpacked import unpack


def elf(sections: dict[str, bytes]) -> bytes:
    """A 64-bit ELF file of these sections, and one of their names."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in [*sections, ".shstrtab"])
    contents = [*sections.values(), names]
    heads, at, body = b"", 64, b""
    for name, content in zip([*sections, ".shstrtab"], contents, strict=True):
        place = names.index(b"\0" + name.encode() + b"\0") + 1
        heads += struct.pack("<IIQQQQIIQQ", place, 1, 0, 0, at, len(content), 0, 0, 1, 0)
        body, at = body + content, at + len(content)
    header = b"\x7fELF" + bytes(36) + struct.pack("<Q", at) + bytes(10)
    header += struct.pack("<HHH", 64, len(contents), len(contents) - 1)
    return header.ljust(64, b"\0")[:40] + struct.pack("<Q", at) + header[48:64] + body + heads


def entry(kind: int, arch: int, content: bytes, flags: int = 0) -> bytes:
    content += bytes(-len(content) % 8)
    head = (
        struct.pack("<HHIQ", kind, 0, 64, len(content))
        + bytes(12)
        + struct.pack("<I", arch)
        + bytes(8)
    )
    return (head + struct.pack("<Q", flags)).ljust(64, b"\0") + content


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def code(name: str) -> bytes:
    return elf({f".text.{name}": b"\x90" * 40})


@pytest.fixture
def library() -> bytearray:
    old = entry(PTX, 75, b"p" * 80) + entry(PTX, 80, b"q" * 80)
    return bytearray(
        elf(
            {
                ".text": b"host code".ljust(16),
                ".nv_fatbin": container(
                    entry(MACHINE_CODE, 80, code("a80")),
                    entry(MACHINE_CODE, 90, code("a90")),
                    entry(MACHINE_CODE, 100, code("a100")),
                )
                + bytes(8)
                + container(old)
                + container(entry(MACHINE_CODE, 90, code("b90"))),
            }
        )
    )


def found(data: bytes) -> list[list[tuple[int, int, list[str]]]]:
    return [
        [(e.kind, e.arch, kernels(data, e)) for e in entries] for _, entries in containers(data)
    ]


def test_code_of_other_cards_goes_and_the_newest_ptx_stays_where_there_is_none(library):
    size = len(library)
    stay, go = prune(library, 90)
    assert len(library) == size and stay > 0 and go > 0
    assert found(library) == [
        [(MACHINE_CODE, 90, ["a90"])],
        [(PTX, 80, [])],
        [(MACHINE_CODE, 90, ["b90"])],
    ]
    assert (
        b"a80" not in library
        and b"a100" not in library
        and b"pppp" not in library
        and b"host code" in library
    )


def test_kernels_are_chosen_by_name_and_ptx_may_go(library):
    prune(library, 90, kernel="^a", with_ptx=False)
    assert b"a90" in library and b"b90" not in library and b"qqqq" not in library
    # what is empty keeps its headers
    assert [len(entries) for _, entries in containers(library)] == [1, 2, 1]


def test_compressed_code_stays_as_nobody_can_look_into_it():
    data = bytearray(
        elf({".nv_fatbin": container(entry(MACHINE_CODE, 90, b"z" * 40, flags=0x8000))})
    )
    prune(data, 90, kernel="^a")
    assert b"zzzz" in data


def test_anything_else_in_the_section_is_refused(library):
    at = library.index(struct.pack("<I", 0xBA55ED50))
    library[at : at + 4] = b"what"
    with pytest.raises(ValueError, match="no container of machine code at"):
        prune(library, 90)


def test_a_version_without_a_list_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"vLLM 0.1.0 has no list of packages .*use 0\.32\.0, 0\.33\.0"
    ):
        gpu_bundle.gpu_bundle("0.1.0", tmp_path)
    assert all(word.count("==") == 1 for packages in PACKAGES.values() for word in packages)


def test_a_wheel_comes_out_of_the_bundle_without_what_is_left_out(tmp_path):
    wheel, site, archive = (
        tmp_path / "some.whl",
        tmp_path / "site",
        tmp_path / "bundle" / "vllm.tar.xz",
    )
    with zipfile.ZipFile(wheel, "w") as file:
        for name in (
            "vllm/a.py",
            "vllm/csrc/a.cu",
            "vllm/vllm-rs",
            "vllm-1.data/scripts/run",
            "vllm/tests/b.py",
        ):
            file.writestr(name, "x = 1\n")
    gpu_bundle.unpack(wheel, site)
    gpu_bundle.add_stand_ins(site)
    archive.parent.mkdir()
    first = gpu_bundle.pack(site, archive)
    content = archive.read_bytes()
    assert (
        first == len(content) == gpu_bundle.pack(site, archive) and content == archive.read_bytes()
    )
    with tarfile.open(archive) as tar:
        assert [name for name in tar.getnames() if name.startswith("vllm")] == ["vllm/a.py"]
    unpack(archive.parent, tmp_path / "there")
    assert (tmp_path / "there" / "site" / "vllm" / "a.py").read_text() == "x = 1\n"
    assert list((tmp_path / "there" / "site" / "xgrammar").rglob("__init__.py"))
    with pytest.raises(FileNotFoundError, match=r"gpu_bundle\.py --output"):
        unpack(tmp_path / "empty", tmp_path / "elsewhere")
