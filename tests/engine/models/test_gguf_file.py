"""Reading GGUF headers: what the gguf package reads, and a clear line for every file that cannot
be."""

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_llama import write_llama

from smartspec.engine.models.gguf_file import open_gguf


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    types = {"attn_v": "Q6_K", "ffn_down": "Q4_K", "token_embd": "Q8_0", "attn_output": "F16"}
    return write_llama(tmp_path_factory.mktemp("gguf") / "model.gguf", types)


def test_tensors_are_those_the_gguf_package_reads(path):
    file, reader = open_gguf(path), gguf.GGUFReader(path)
    assert file.scalars["llama.attention.head_count"] == 8
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        stored = file.tensors[tensor.name]
        assert (stored.type, stored.num_bytes, stored.offset) == (
            tensor.tensor_type,
            tensor.n_bytes,
            tensor.data_offset,
        )
        assert stored.shape == tuple(reversed(tensor.shape.tolist()))
        np.testing.assert_array_equal(
            file.read(tensor.name).reshape(-1), tensor.data.view(np.uint8).reshape(-1)
        )


def changed(path: Path, tmp_path: Path, at: int, content: bytes) -> Path:
    damaged = bytearray(path.read_bytes())
    damaged[at : at + len(content)] = content
    (tmp_path / "damaged.gguf").write_bytes(damaged)
    return tmp_path / "damaged.gguf"


def tensor_fields(path: Path, name: str) -> dict[str, int]:
    """Where in the file the numbers of a tensor's description stand."""
    begin = path.read_bytes().index(name.encode()) + len(name)
    return {
        "dimensions": begin,
        "inputs": begin + 4,
        "outputs": begin + 12,
        "type": begin + 20,
        "offset": begin + 24,
    }


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("type", 99, "'blk.0.attn_k.weight' is of unknown type 99"),
        # Q4_2, which is gone
        ("type", 4, "'blk.0.attn_k.weight' is of unknown type 4"),
        ("dimensions", 0, "has 0 dimensions"),
        ("dimensions", 1 << 30, f"has {1 << 30} dimensions"),
        ("inputs", 250, "does not consist of Q4_1 blocks of 32"),
        ("inputs", 0, "does not consist of"),
        ("outputs", 1 << 40, "cut short"),
        ("outputs", 160, "overlaps tensor"),
        ("offset", 0, "overlaps tensor"),
        ("offset", 1 << 62, "cut short"),
    ],
)
def test_a_wrong_description_of_a_tensor(path, tmp_path, field, value, message):
    content = struct.pack("<I" if field in ("type", "dimensions") else "<Q", value)
    damaged = changed(path, tmp_path, tensor_fields(path, "blk.0.attn_k.weight")[field], content)
    with pytest.raises(
        OSError, match=rf"damaged\.gguf is damaged or no GGUF file .*{message}.*download or convert"
    ):
        open_gguf(damaged)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("llama.block_count", "is of 1073741826 layers and holds 20 tensors"),
        (
            "llama.embedding_length",
            "embedding_length is 1073742080, its tensors have no dimension above 512",
        ),
        (
            "llama.attention.head_count",
            "head_count is 1073741832, its tensors have no dimension above 512",
        ),
    ],
)
def test_a_size_that_no_tensor_has(path, tmp_path, key, message):
    """A model is built by these before its tensors are looked for."""
    at = path.read_bytes().index(key.encode()) + len(key) + 4 + 3
    with pytest.raises(OSError, match=message):
        open_gguf(changed(path, tmp_path, at, b"\x40"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"GG", "cut short"),
        (b"<html>not found</html>", "does not begin as one"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "its version is 1, known are 2 and 3"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "cut short"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62), "cut short"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77),
            "'k' is of unknown type 77",
        ),
    ],
)
def test_a_header_that_is_none(tmp_path, content, message):
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(OSError, match=message):
        open_gguf(tmp_path / "model.gguf")


def test_a_file_that_was_cut_short(path, tmp_path):
    content = path.read_bytes()
    (tmp_path / "short.gguf").write_bytes(content[:-1])
    with pytest.raises(OSError, match="cut short"):
        open_gguf(tmp_path / "short.gguf")
    for size in range(0, len(open_gguf(path).header), 97):
        (tmp_path / "short.gguf").write_bytes(content[:size])
        with pytest.raises(OSError, match=r"short\.gguf is damaged"):
            open_gguf(tmp_path / "short.gguf")


def test_a_damaged_header_gives_an_error_of_one_line_or_the_bytes_of_the_file(path, tmp_path):
    """Flipped bits, half of them in what is said of tensors, and every tenth time some bytes of any
    kind. Nothing larger than the file is ever in memory beside it."""
    intact, content = open_gguf(path), path.read_bytes()
    size, first_tensor = len(intact.header), content.index(b"token_embd.weight") - 8
    damaged, random = tmp_path / "damaged.gguf", np.random.default_rng(0)
    damaged.write_bytes(content)
    num_errors = num_intact = 0
    tracemalloc.start()
    for number in range(2000):
        header = bytearray(intact.header)
        for _ in range(random.integers(1, 4)):
            header[random.integers(first_tensor if number % 2 else 0, size)] ^= (
                1 << random.integers(8)
            )
        if number % 10 == 0:
            at = random.integers(0, size - 16)
            header[at : at + 16] = random.bytes(16)
        with damaged.open("r+b") as file:
            file.write(header)
        try:
            opened = open_gguf(damaged)
        except OSError as error:
            assert "damaged.gguf" in str(error) and "\n" not in str(error)
            num_errors += 1
            continue
        num_intact += opened.tensors == intact.tensors
        for name, tensor in opened.tensors.items():
            assert (
                opened.read(name).tobytes()
                == content[tensor.offset : tensor.offset + tensor.num_bytes]
            )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(content)
    assert num_errors > 500 and num_intact > 50
