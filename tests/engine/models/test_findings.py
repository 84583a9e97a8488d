"""What a load has found out about a model is used by the next one of the same, and by no other."""

import os
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from saved_models import load_saved, save_model, served_logits
from test_load_check import fails_to_fuse, makes_mlps_wrong

from smartspec.engine.models import load
from smartspec.engine.models.loaded_model import LoadedModel

TEXT = np.arange(3, 30, dtype=np.int32)


class Loads:
    """Of models in a folder, with a cache of their own. num_examined counts the stock models that
    were examined."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path):
        self.model, self.cache, self.num_examined = (
            save_model(folder / "model"),
            folder / "cache",
            0,
        )
        monkeypatch.setenv("SMARTSPEC_CACHE", str(self.cache))
        monkeypatch.setattr(load, "examine", self._examine)

    def _examine(self, *args, examine=load.examine):
        self.num_examined += 1
        return examine(*args)

    def __call__(self, **options) -> LoadedModel:
        return load_saved(self.model, **options)

    @property
    def files(self) -> list[Path]:
        return sorted((self.cache / "findings").glob("*.json"))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Loads:
    return Loads(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    "options", [{}, {"quantization": "int8"}, {"quantization": "int8", "activations": "fp32"}]
)
def test_a_second_load_is_like_the_first_and_examines_nothing(loads, options):
    first, second = loads(**options), loads(**options)
    assert loads.num_examined == 1 and len(loads.files) == 1
    for field in fields(LoadedModel):
        if field.name not in ("model", "tokenizer", "fused_pass"):
            assert getattr(second, field.name) == getattr(first, field.name), field.name
    assert (second.fused_pass is None) == (first.fused_pass is None)
    assert torch.equal(served_logits(first, TEXT), served_logits(second, TEXT))


def test_another_model_in_its_place_is_examined(loads):
    loads()
    weights = loads.model / "model.safetensors"
    facts, content = weights.stat(), bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    loads()
    assert loads.num_examined == 2


def test_other_options_and_another_engine_are_examined(loads, monkeypatch):
    loads()
    loads(activations="fp32")
    monkeypatch.setattr(
        "smartspec.engine.models.findings._engine_digest", lambda: "of another source"
    )
    loads()
    assert loads.num_examined == 3


@pytest.mark.parametrize(
    "spoil", [lambda text: "", lambda text: text[:-9], lambda text: text.replace("4", "8")]
)
def test_damaged_findings_are_made_anew(loads, caplog, spoil):
    loads()
    (file,) = loads.files
    file.write_text(spoil(file.read_text()))
    loads()
    assert loads.num_examined == 2 and "unusable" in caplog.text
    loads()
    assert loads.num_examined == 2


def test_findings_that_others_could_write_are_not_used(loads):
    loads()
    loads.files[0].chmod(0o666)
    loads()
    assert loads.num_examined == 2


def test_where_nothing_can_be_kept_a_load_goes_on(loads, caplog):
    loads.cache.mkdir()
    (loads.cache / "findings").write_text("in the way")
    assert loads().num_layers == 3
    assert "could not be stored" in caplog.text


def test_what_was_said_is_said_again(loads, monkeypatch, caplog):
    makes_mlps_wrong(monkeypatch)
    first = loads()
    caplog.clear()
    second = loads()
    assert loads.num_examined == 1
    assert "not served with fused modules: its logits differ" in caplog.text
    assert [type(m) for m in second.model.modules()] == [type(m) for m in first.model.modules()]


def test_a_failure_is_not_kept(loads, monkeypatch):
    with monkeypatch.context() as patch:
        fails_to_fuse(patch)
        loads()
    assert not loads.files
    assert loads().fused_pass is not None
