"""The head that comes with the package: found by its target, in the defaults, and right whatever it drafts."""

import json

import pytest

from smartspec.engine.drafting import shipped_head
from smartspec.engine.drafting.shipped_head import HEADS, SHIPPED, head_folder
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.engine.runtime.config import EngineConfig, parse_drafters

TEXT_ALONE = ("prompt-lookup", "recycling", "prediction")
MODEL_FREE = (*TEXT_ALONE, "datastore")


@pytest.fixture
def heads(tmp_path, monkeypatch):
    """A package with a head for the default model."""
    (tmp_path / DEFAULT_MODEL).mkdir()
    (tmp_path / DEFAULT_MODEL / "config.json").write_text(json.dumps({"speculators_model_type": "eagle3"}))
    monkeypatch.setattr(shipped_head, "HEADS", tmp_path)
    return tmp_path


def test_the_default_takes_the_head_that_comes_with_the_model_where_weights_are_not_in_blocks(heads):
    assert EngineConfig(quantization="none").drafters == (*MODEL_FREE, SHIPPED)
    assert EngineConfig(model="some/model", quantization="none").drafters == TEXT_ALONE
    for quantization in ("auto", "int8", "int4"):
        assert EngineConfig(quantization=quantization).drafters == MODEL_FREE
    assert head_folder(SHIPPED, DEFAULT_MODEL) == heads / DEFAULT_MODEL


def test_without_a_head_the_default_needs_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped_head, "HEADS", tmp_path)
    assert EngineConfig(quantization="none").drafters == MODEL_FREE


@pytest.mark.usefixtures("heads")
def test_what_is_named_is_what_drafts():
    assert EngineConfig(drafters=()).drafters == ()
    assert EngineConfig(drafters=parse_drafters("none")).drafters == ()
    assert EngineConfig(drafters=parse_drafters("recycling")).drafters == ("recycling",)
    assert EngineConfig(policy="off").active_drafters == ()
    assert str(head_folder("./head", DEFAULT_MODEL)) == "head"


@pytest.mark.usefixtures("heads")
@pytest.mark.parametrize("model", ["some/model", "a/../b", "/tmp"])
def test_a_head_that_does_not_come_with_the_model_is_refused(model):
    with pytest.raises(ValueError, match=r"no head comes with .*: leave 'head' out, or give the folder"):
        head_folder(SHIPPED, model)


@pytest.mark.skipif(not (HEADS / DEFAULT_MODEL).is_dir(), reason="the package is built without it")
def test_the_shipped_head_is_small_and_whole():
    files = {path.name: path.stat().st_size for path in (HEADS / DEFAULT_MODEL).iterdir()}
    assert files.keys() == {"model.safetensors", "config.json", "README.md"}
    assert sum(files.values()) < 20e6
    config = json.loads((HEADS / DEFAULT_MODEL / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == DEFAULT_MODEL
