"""Models in several files: all parts are found beside any one of them, and a part that is missing
is named."""

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_architectures import SPECS, write_gguf
from saved_models import save_model
from transformers import AutoModelForCausalLM

from smartspec.engine.models.checkpoint import locate
from smartspec.engine.models.gguf_file import open_gguf

NUM_PARTS = 3


def write_parts(path: Path, *, first_empty: bool = False, seed: int = 0) -> list[Path]:
    """The parts of a llama file, written by the gguf package's own splitter."""
    splitting = {"split_max_tensors": 8 if first_empty else 12, "small_first_shard": first_empty}
    write_gguf(path, SPECS["llama"](), seed, **splitting)
    return sorted(path.parent.glob(f"{path.stem}-*-of-*.gguf"))


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    found = write_parts(tmp_path / "model.gguf")
    assert len(found) == NUM_PARTS
    return found


@pytest.mark.parametrize("first_empty", [False, True])
def test_any_part_gives_the_whole_model(first_empty, tmp_path):
    parts = write_parts(tmp_path / "model.gguf", first_empty=first_empty)
    whole = open_gguf(write_gguf(tmp_path / "whole.gguf", SPECS["llama"]()))
    assert len(parts) > 2 and (not first_empty or not gguf.GGUFReader(parts[0]).tensors)
    for part in parts:
        file = open_gguf(part)
        assert file.path == parts[0]
        assert {
            key: value for key, value in file.scalars.items() if "split." not in key
        } == whole.scalars
        assert file.tensors.keys() == whole.tensors.keys()
        for name in whole.tensors:
            np.testing.assert_array_equal(file.read(name), whole.read(name))


def is_renamed(parts: list[Path]) -> None:
    parts[0] = parts[0].rename(parts[0].with_name("renamed.gguf"))


def are_swapped(parts: list[Path]) -> None:
    aside = parts[1].rename(parts[1].with_suffix(".aside"))
    parts[2].rename(parts[1])
    aside.rename(parts[2])


def is_of_another_model(parts: list[Path]) -> None:
    spec, name = SPECS["llama"]().without("blk.1.ffn_up.bias"), parts[1].name
    other = parts[1].parent / "other"
    other.mkdir()
    write_gguf(other / "model.gguf", spec, split_max_tensors=12)
    shutil.copy(other / name, parts[1])


def is_there_twice(parts: list[Path]) -> None:
    """The right number of parts, and not all tensors."""
    content = bytearray(parts[0].read_bytes())
    content[content.index(b"split.no") + len(b"split.no") + 4] = 1
    parts[1].write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda parts: parts[1].unlink(), "one of 3 parts.*00002-of-00003.gguf is missing beside"),
        (lambda parts: parts.pop(0).unlink(), "00001-of-00003.gguf is missing beside it: download"),
        (lambda parts: [part.unlink() for part in parts[1:]], "00002-of-00003.gguf and 1 more is"),
        (
            is_renamed,
            r"renamed\.gguf is one of 3 parts.*does not end in -0000N-of-00003\.gguf",
        ),
        (are_swapped, r"00002-of-00003\.gguf is not the part.*split\.no is 2, not 1"),
        (is_of_another_model, r"00002-of-00003\.gguf is not the part.*split\.tensors\.count is"),
        (is_there_twice, r"are not of one model .they hold"),
    ],
)
def test_parts_that_are_no_whole_are_named(parts, harm, message):
    harm(parts)
    with pytest.raises(OSError, match=message):
        open_gguf(parts[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint in several files, written by transformers."""
    save_model(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    return tmp_path


def test_a_checkpoint_in_several_files_is_whole(folder):
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    assert locate(str(folder)) == (str(folder), {})


def test_a_missing_file_of_a_checkpoint_is_named(folder):
    missing = sorted(folder.glob("model-*-of-*.safetensors"))[1]
    missing.unlink()
    with pytest.raises(OSError, match=rf"lacks '{missing.name}', 1 of \d+ files .*: download it"):
        locate(str(folder))


def test_a_missing_or_damaged_index_is_named(folder):
    index = folder / "model.safetensors.index.json"
    for text, told in (
        *((text, "is damaged") for text in ("{", "[]", '{"weight_map": 3}', "{}")),
        ('{"weight_map": {"norm.weight": "a/../../other"}}', "names no files beside it"),
    ):
        index.write_text(text)
        with pytest.raises(OSError, match=rf"model\.safetensors\.index\.json {told}"):
            locate(str(folder))
    index.unlink()
    with pytest.raises(
        OSError,
        match=r"holds model-00001-of-\d+\.safetensors, but no model\.safetensors\.index\.json",
    ):
        locate(str(folder))
