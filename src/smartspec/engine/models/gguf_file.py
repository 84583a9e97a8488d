"""The places of the tensors of a GGUF file, and their raw bytes.

The gguf package's reader makes an array of every token and merge of the vocabulary, which takes
seconds; here they are passed over. A model that is split into several files is read as one. What a
file says is believed only as far as the file goes: lengths, types, offsets and overlaps are checked
before anything is read.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import re
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Never

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, dequantize

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
# Longer arrays are of a vocabulary; those of a model have a number for every layer.
MAX_ARRAY = 1024
# Files of one model that is split, as llama.cpp's tools name them; the first is 00001.
_PART = re.compile(
    r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})(?P<ending>\.gguf)", re.IGNORECASE
)
# Values that models are built by; in a file that is whole, some tensor has a dimension at least as
# large.
SIZES = (
    "embedding_length", "feed_forward_length", "vocab_size", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "rope.dimension_count",
)  # fmt: skip
_LENGTH = struct.Struct("<Q")
_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file."""

    path: Path = field(compare=False)
    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]  # outermost dimension first, in weights
    offset: int  # of its bytes, from the beginning of the file at path

    @property
    def row_bytes(self) -> int:
        """Bytes of one innermost row."""
        block_size, block_bytes = GGML_QUANT_SIZES[self.type]
        return self.shape[-1] // block_size * block_bytes

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.row_bytes


@dataclass(frozen=True)
class GGUFFile:
    """The content of a GGUF file."""

    path: Path  # of the file, the first of a model that is split
    # the metadata by key, numbers, text or short lists of numbers (as tuples), None for others
    scalars: dict[str, object]
    tensors: dict[str, StoredTensor]
    header: bytes  # all bytes before the tensors, of all files

    def read(self, name: str) -> np.ndarray:
        """uint8 [all dimensions but the innermost, row_bytes]: a copy of the tensor's bytes."""
        tensor = self.tensors[name]
        content = np.fromfile(
            tensor.path, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.offset
        )
        if len(content) != tensor.num_bytes:
            raise _damaged(tensor.path, f"it ends within tensor {name!r}")
        return content.reshape(*tensor.shape[:-1], tensor.row_bytes)

    def read_plain(self, name: str) -> np.ndarray:
        """fp32 [shape]: the tensor's numbers."""
        raw, kind = self.read(name), self.tensors[name].type
        numbers = {"F32": np.float32, "F16": np.float16}.get(kind.name)
        return dequantize(raw if numbers is None else raw.view(numbers), kind).astype(np.float32)


def gguf_in(folder: Path) -> Path | None:
    """The GGUF file in a folder, or the first of a model that is split; None where there is none,
    or are several."""
    found = []
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        with path.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                found.append(path)
    models = {part["stem"] if (part := _PART.fullmatch(path.name)) else path.name for path in found}
    return found[0] if len(models) == 1 else None


def open_gguf(path: Path) -> GGUFFile:
    """Read the header of a file, or of all files of a model that is split, given any of them, which
    lie beside it.

    Raises OSError naming the file, what is wrong and the remedy.
    """
    file = _open_one(path)
    count = file.scalars.get("split.count", 1)
    if type(count) is not int or count < 1:
        raise _damaged(path, f"its split.count is {count!r}")
    file = _join(path, count) if count > 1 else file
    _check_sizes(file)
    return file


def _join(path: Path, count: int) -> GGUFFile:
    """All parts of a split model as one file. Settings stand in the first part."""
    found = _PART.fullmatch(path.name)
    if not found or int(found["parts"]) != count:
        ending = f"-0000N-of-{count:05d}.gguf"
        raise OSError(
            f"{path} is one of {count} parts of a model and its name does not end in {ending}: "
            "rename it so"
        )
    names = (
        f"{found['stem']}-{number + 1:05d}-of-{count:05d}{found['ending']}"
        for number in range(count)
    )
    places = [path.with_name(name) for name in names]
    missing = [place.name for place in places if not place.is_file()]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        problem = f"{missing[0]}{others} is missing beside it"
        raise OSError(
            f"{path} is one of {count} parts of a model, {problem}: download all parts into one "
            "folder"
        )
    parts = [_open_one(place) for place in places]
    tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
    for number, part in enumerate(parts):
        _check_part(number, part, parts[0])
    wanted = parts[0].scalars.get("split.tensors.count")
    if not sum(len(part.tensors) for part in parts) == len(tensors) == wanted:
        problem = f"they hold {len(tensors)} tensors, the model has {wanted}"
        raise OSError(
            f"{places[0]} and the parts beside it are not of one model ({problem}): download all "
            "parts again"
        )
    return replace(parts[0], tensors=tensors, header=b"".join(part.header for part in parts))


def _check_part(number: int, part: GGUFFile, first: GGUFFile) -> None:
    """Raise OSError where a part says that it is another one, or says of the model what the first
    does not."""
    for key, value in part.scalars.items():
        wanted = number if key == "split.no" else first.scalars.get(key)
        if value != wanted:
            problem = f"its {key} is {value!r}, not {wanted!r}"
            raise OSError(
                f"{part.path} is not the part that its name says ({problem}): download all parts "
                "again"
            )


def _open_one(path: Path) -> GGUFFile:
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return _read_header(_Cursor(path, content))
    except ValueError as error:  # of mmap: an empty file
        raise _damaged(path, "it is empty") from error


def _read_header(cursor: "_Cursor") -> GGUFFile:
    if cursor.take(4) != MAGIC:
        cursor.fail("it does not begin as one")
    version, num_tensors, num_values = cursor.numbers("IQQ")
    if version not in VERSIONS:
        cursor.fail(f"its version is {version}, known are {' and '.join(map(str, VERSIONS))}")
    scalars = dict(_read_value(cursor) for _ in cursor.counted(num_values))
    stored = [_read_tensor(cursor) for _ in cursor.counted(num_tensors)]
    alignment = scalars.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1:
        cursor.fail(f"its alignment is {alignment!r}")
    begin = -(-cursor.place // alignment) * alignment
    tensors = [
        StoredTensor(cursor.path, name, type_, shape, begin + offset)
        for name, type_, shape, offset in stored
    ]
    _check_places(cursor, tensors)
    return GGUFFile(
        cursor.path,
        scalars,
        {tensor.name: tensor for tensor in tensors},
        cursor.content[: cursor.place],
    )


def _damaged(path: Path, problem: str) -> OSError:
    return OSError(f"{path} is damaged or no GGUF file ({problem}): download or convert it again")


class _Cursor:
    """Reads little-endian values one after the other; what lies beyond the end raises."""

    def __init__(self, path: Path, content: mmap.mmap):
        self.path, self.content, self.place = path, content, 0

    def fail(self, problem: str) -> Never:
        raise _damaged(self.path, problem)

    def take(self, count: int) -> bytes:
        begin = self.skip(count)
        return self.content[begin : self.place]

    def skip(self, count: int) -> int:
        """Pass over bytes; return where they begin."""
        if count > len(self.content) - self.place:
            self.fail("its header is cut short")
        self.place += count
        return self.place - count

    def numbers(self, letters: str) -> tuple:
        form = f"<{letters}"
        return struct.unpack_from(form, self.content, self.skip(struct.calcsize(form)))

    def counted(self, count: int) -> range:
        """A range of so many things; more than there are bytes left are too many."""
        if count > len(self.content) - self.place:
            self.fail("its header is cut short")
        return range(count)

    def skip_texts(self, count: int) -> None:
        """Pass over `count` texts: a vocabulary has 100,000, so without a call for each."""
        content, place, end = self.content, self.place, len(self.content)
        for _ in self.counted(count):
            if place > end - 8:
                self.fail("its header is cut short")
            place += 8 + _LENGTH.unpack_from(content, place)[0]
        self.place = place
        self.skip(0)

    def text(self) -> str:
        (length,) = self.numbers("Q")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            self.fail("a name in its header is no text")


def _read_value(cursor: _Cursor) -> tuple[str, object]:
    """A key and its value; of arrays, short ones of numbers as a tuple, others as None: those are
    passed over."""
    key = cursor.text()
    (number,) = cursor.numbers("I")
    if number == GGUFValueType.ARRAY:
        return key, _read_array(cursor, key)
    if number == GGUFValueType.STRING:
        return key, cursor.text()
    return key, cursor.numbers(_scalar(cursor, key, number))[0]


def _read_array(cursor: _Cursor, key: str) -> tuple | None:
    kind, count = cursor.numbers("IQ")
    if kind == GGUFValueType.STRING:
        cursor.skip_texts(count)
        return None
    letter = _scalar(cursor, key, kind)
    if count <= MAX_ARRAY:
        return cursor.numbers(letter * count)
    cursor.skip(count * struct.calcsize(f"<{letter}"))
    return None


def _scalar(cursor: _Cursor, key: str, number: int) -> str:
    try:
        return _SCALARS[GGUFValueType(number)]
    except (ValueError, KeyError):
        cursor.fail(f"the value of {key!r} is of unknown type {number}")


def _read_tensor(cursor: _Cursor) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int]:
    name = cursor.text()
    (num_dimensions,) = cursor.numbers("I")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        cursor.fail(f"tensor {name!r} has {num_dimensions} dimensions")
    shape = tuple(reversed(cursor.numbers("Q" * num_dimensions)))
    number, offset = cursor.numbers("IQ")
    try:
        kind = GGMLQuantizationType(number)
        block_size = GGML_QUANT_SIZES[kind][0]
    except (ValueError, KeyError):
        cursor.fail(f"tensor {name!r} is of unknown type {number}")
    if 0 in shape or shape[-1] % block_size:
        cursor.fail(
            f"tensor {name!r} of shape {shape} does not consist of {kind.name} blocks of "
            f"{block_size}"
        )
    return name, kind, shape, offset


def _check_places(cursor: _Cursor, tensors: list[StoredTensor]) -> None:
    names: set[str] = set()
    size = len(cursor.content)
    end, before = cursor.place, "the header"
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        if tensor.name in names:
            cursor.fail(f"there are two tensors {tensor.name!r}")
        if tensor.offset < end:
            cursor.fail(f"tensor {tensor.name!r} overlaps {before}")
        names.add(tensor.name)
        end, before = tensor.offset + tensor.num_bytes, f"tensor {tensor.name!r}"
        if end > size:
            cursor.fail(f"tensor {tensor.name!r} ends at byte {end} of {size}: it is cut short")


def _check_sizes(file: GGUFFile) -> None:
    """A model is built before its tensors are looked for; by a size that is damage, for ever or
    until memory ends."""
    architecture = file.scalars.get("general.architecture")
    num_layers = file.scalars.get(f"{architecture}.block_count")
    if isinstance(num_layers, int) and num_layers > len(file.tensors):
        raise _damaged(
            file.path, f"it is of {num_layers} layers and holds {len(file.tensors)} tensors"
        )
    largest = max((size for tensor in file.tensors.values() for size in tensor.shape), default=0)
    for key in (f"{architecture}.{name}" for name in SIZES):
        found = file.scalars.get(key)
        for size in found if isinstance(found, tuple) else (found,):
            if file.tensors and isinstance(size, int) and size > largest:
                raise _damaged(
                    file.path, f"its {key} is {size}, its tensors have no dimension above {largest}"
                )
