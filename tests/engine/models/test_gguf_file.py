"""Reading GGUF headers: what the gguf package reads, and a clear line for every file that cannot
be."""

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_llama import write_llama
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smartspec.engine.models.gguf_file import open_gguf


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    types = {"attn_v": "Q6_K", "ffn_down": "Q4_K", "token_embd": "Q8_0", "attn_output": "F16"}
    return write_llama(tmp_path_factory.mktemp("gguf") / "model.gguf", types)


def test_tensors_are_those_the_gguf_package_reads(path: Path):
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
        ("type", struct.pack("<I", 99), "'blk.0.attn_k.weight' is of unknown type 99"),
        # Q4_2, which is gone
        ("type", struct.pack("<I", 4), "'blk.0.attn_k.weight' is of unknown type 4"),
        ("dimensions", struct.pack("<I", 0), "has 0 dimensions"),
        ("dimensions", struct.pack("<I", 1 << 30), f"has {1 << 30} dimensions"),
        ("inputs", struct.pack("<Q", 250), "does not consist of Q4_1 blocks of 32"),
        ("inputs", struct.pack("<Q", 0), "does not consist of"),
        ("outputs", struct.pack("<Q", 1 << 40), "cut short"),
        ("outputs", struct.pack("<Q", 160), "overlaps tensor"),
        ("offset", struct.pack("<Q", 0), "overlaps tensor"),
        ("offset", struct.pack("<Q", 1 << 62), "cut short"),
    ],
)
def test_a_wrong_description_of_a_tensor(
    path: Path, tmp_path: Path, field: str, value: bytes, message: str
):
    damaged = changed(path, tmp_path, tensor_fields(path, "blk.0.attn_k.weight")[field], value)
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
def test_a_size_that_no_tensor_has(path: Path, tmp_path: Path, key: str, message: str):
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
def test_a_header_that_is_none(tmp_path: Path, content: bytes, message: str):
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(OSError, match=message):
        open_gguf(tmp_path / "model.gguf")


def test_a_file_that_was_cut_short(path: Path, tmp_path: Path):
    content = path.read_bytes()
    (tmp_path / "short.gguf").write_bytes(content[:-1])
    with pytest.raises(OSError, match="cut short"):
        open_gguf(tmp_path / "short.gguf")
    for size in range(0, len(open_gguf(path).header), 97):
        (tmp_path / "short.gguf").write_bytes(content[:size])
        with pytest.raises(OSError, match=r"short\.gguf is damaged"):
            open_gguf(tmp_path / "short.gguf")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_to_a_header_is_an_error_of_one_line_or_none(
    path: Path, tmp_path: Path, data: st.DataObject
):
    """Never another exception, never a tensor that is not in the file."""
    size = len(open_gguf(path).header)
    at, content = data.draw(st.integers(0, size - 1)), data.draw(st.binary(min_size=1, max_size=16))
    damaged = changed(path, tmp_path, at, content)
    try:
        file = open_gguf(damaged)
    except OSError as error:
        assert "damaged.gguf" in str(error) and "\n" not in str(error)
        return
    for name, tensor in file.tensors.items():
        assert file.read(name).nbytes == tensor.num_bytes


def test_flipped_bits_in_a_header_give_an_error_of_one_line_or_the_bytes_of_the_file(
    path: Path, tmp_path: Path
):
    """Half of the flips are in what is said of tensors. Nothing larger than the file is ever in
    memory beside it."""
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
