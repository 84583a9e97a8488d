"""Models in several files: all parts are found beside any one of them, and a part that is missing
is named."""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_architectures import SPECS, write_gguf
from saved_models import save_model
from transformers import AutoModelForCausalLM

from smartspec.engine.models.checkpoint import claimed_positions, locate
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
def test_any_part_gives_the_whole_model(first_empty: bool, tmp_path: Path):
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
    assert claimed_positions(str(parts[-1])) == claimed_positions(str(whole.path))


@pytest.mark.parametrize("missing", range(NUM_PARTS))
def test_a_missing_part_is_named(parts: list[Path], missing: int):
    parts[missing].unlink()
    given = parts[(missing + 1) % NUM_PARTS]
    with pytest.raises(
        OSError,
        match=rf"one of 3 parts.*{parts[missing].name} is missing beside it: download all parts",
    ):
        open_gguf(given)


def test_several_missing_parts_are_counted(parts: list[Path]):
    parts[1].unlink()
    parts[2].unlink()
    with pytest.raises(OSError, match=rf"{parts[1].name} and 1 more is missing"):
        open_gguf(parts[0])


def test_a_part_under_another_name(parts: list[Path], tmp_path: Path):
    renamed = parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(
        OSError, match=r"renamed\.gguf is one of 3 parts.*does not end in -0000N-of-00003\.gguf"
    ):
        open_gguf(renamed)


def test_parts_in_each_others_place(parts: list[Path]):
    aside = parts[1].rename(parts[1].with_suffix(".aside"))
    parts[2].rename(parts[1])
    aside.rename(parts[2])
    with pytest.raises(
        OSError, match=r"00002-of-00003\.gguf is not the part.*split\.no is 2, not 1"
    ):
        open_gguf(parts[0])


def test_a_part_of_another_model(parts: list[Path], tmp_path: Path):
    (tmp_path / "other").mkdir()
    spec = SPECS["llama"]().without("blk.1.ffn_up.bias")
    write_gguf(tmp_path / "other" / "model.gguf", spec, split_max_tensors=12)
    shutil.copy(tmp_path / "other" / parts[1].name, parts[1])
    with pytest.raises(
        OSError, match=r"00002-of-00003\.gguf is not the part.*split\.tensors\.count is"
    ):
        open_gguf(parts[0])


def test_a_part_twice(parts: list[Path]):
    """The right number of parts, and not all tensors."""
    content = bytearray(parts[0].read_bytes())
    at = content.index(b"split.no") + len(b"split.no") + 4
    content[at] = 1
    parts[1].write_bytes(content)
    with pytest.raises(OSError, match=r"are not of one model .they hold"):
        open_gguf(parts[2])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint in several files, written by transformers."""
    save_model(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    return tmp_path


def test_a_checkpoint_in_several_files_is_whole(folder: Path):
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    assert locate(str(folder)) == (str(folder), {})


def test_a_missing_file_of_a_checkpoint_is_named(folder: Path):
    missing = sorted(folder.glob("model-*-of-*.safetensors"))[1]
    missing.unlink()
    with pytest.raises(OSError, match=rf"lacks '{missing.name}', 1 of \d+ files .*: download it"):
        locate(str(folder))


def test_a_missing_or_damaged_index_is_named(folder: Path):
    index = folder / "model.safetensors.index.json"
    for content in ("{", "[]", json.dumps({"weight_map": 3}), "{}"):
        index.write_text(content)
        with pytest.raises(OSError, match=r"model\.safetensors\.index\.json is damaged"):
            locate(str(folder))
    index.unlink()
    with pytest.raises(
        OSError,
        match=r"holds model-00001-of-\d+\.safetensors, but no model\.safetensors\.index\.json",
    ):
        locate(str(folder))
