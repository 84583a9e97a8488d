"""The head that comes with the package: found by its target, in the defaults, and right whatever it
drafts."""

import json
import re
from pathlib import Path

import pytest
from default_model import load_once

from smartspec.engine.drafting.shipped import files as shipped_files
from smartspec.engine.drafting.shipped.files import missing_files, models_folder, shipped_folder
from smartspec.engine.drafting.shipped.head import SHIPPED, head_folder
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.engine.runtime import build
from smartspec.engine.runtime.config import EngineConfig, parse_drafters

TEXT_ALONE = ("prompt-lookup", "recycling", "prediction")
MODEL_FREE = (*TEXT_ALONE, "datastore")


@pytest.fixture
def heads(tmp_path, monkeypatch):
    """A package with a head and a datastore for the default model."""
    head = tmp_path / "heads" / DEFAULT_MODEL
    for folder in (head, tmp_path / "datastores" / DEFAULT_MODEL):
        folder.mkdir(parents=True)
    (head / "config.json").write_text(json.dumps({"speculators_model_type": "eagle3"}))
    monkeypatch.setattr(shipped_files, "models_folder", lambda: tmp_path)
    return head


def test_the_default_takes_the_head_that_comes_with_the_model_where_weights_are_not_in_blocks(
    heads,
):
    assert EngineConfig(quantization="none").drafters == (*MODEL_FREE, SHIPPED)
    assert EngineConfig(model="some/model", quantization="none").drafters == TEXT_ALONE
    for quantization in ("auto", "int8", "int4"):
        assert EngineConfig(quantization=quantization).drafters == MODEL_FREE
    assert head_folder(SHIPPED, DEFAULT_MODEL) == heads
    assert missing_files(DEFAULT_MODEL) is None


def test_without_the_package_the_default_needs_none_of_it_and_a_sentence_says_what_is_missing(
    monkeypatch,
):
    monkeypatch.setattr(shipped_files, "models_folder", lambda: None)
    assert EngineConfig(quantization="none").drafters == EngineConfig().drafters == TEXT_ALONE
    assert missing_files("some/model") is None
    missing = "smartspec-models is not installed, .* pip install ./models in a clone"
    assert re.search(missing, missing_files(DEFAULT_MODEL))
    with pytest.raises(ValueError, match=f"drafter 'head': {missing}"):
        head_folder(SHIPPED, DEFAULT_MODEL)


def test_a_start_without_the_package_says_so_and_serves(monkeypatch):
    monkeypatch.setattr(shipped_files, "models_folder", lambda: None)
    monkeypatch.setattr(
        build,
        "load_model",
        lambda *given, **options: load_once(DEFAULT_MODEL, dtype="auto", device="cpu"),
    )
    said = list[str]()
    build.load_models(EngineConfig(), said.append)
    assert sum("smartspec-models is not installed" in line for line in said) == 1
    said.clear()
    build.load_models(EngineConfig(policy="off"), said.append)
    assert not any("smartspec-models" in line for line in said)


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
    with pytest.raises(
        ValueError, match=r"no head comes with .*: leave 'head' out, or give the folder"
    ):
        head_folder(SHIPPED, model)


def test_the_package_is_found_where_it_is_installed():
    assert models_folder() == Path(__file__).parents[3] / "models" / "smartspec_models"


def test_the_shipped_head_is_small_and_whole():
    head = shipped_folder("heads", DEFAULT_MODEL)
    files = {path.name: path.stat().st_size for path in head.iterdir()}
    assert files.keys() == {"model.safetensors", "config.json", "README.md"}
    assert sum(files.values()) < 20e6
    config = json.loads((head / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == DEFAULT_MODEL
