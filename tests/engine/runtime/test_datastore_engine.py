"""The datastore in the engine: the one that comes with the model, others by name, and answers that
are kept."""

import shutil

import numpy as np
import pytest
from default_model import default_tokenizer, load_once
from real_prompts import PROMPTS
from tiny_engine import finish, requests_of

from smartspec.drafters.datastore import Datastore
from smartspec.drafters.datastore_build import NgramCounts, write_datastore
from smartspec.drafters.tokenizer_digest import quick_digest
from smartspec.engine.drafting.shipped.datastore import datastore_folder
from smartspec.engine.drafting.shipped.files import shipped_folder
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.engine.runtime.build import Engine, build_engine
from smartspec.engine.runtime.config import EngineConfig

pytestmark = pytest.mark.usefixtures("loaded_once")
MAX_TOKENS = 40


def engine_of(**options) -> Engine:
    given = {
        "drafters": ("datastore",),
        "policy": "fixed:9",
        "max_batch": 2,
        "max_model_len": 512,
        "datastore": "none",
    }
    return build_engine(EngineConfig(**given | options, strict=True, device="cpu"))


def answer(engine: Engine) -> tuple[list[int], int, int]:
    """The answer to a prompt, in how many steps it was written, and how many draft tokens were
    verified."""
    prompt = engine.tokenizer(PROMPTS[1])["input_ids"]
    (request,) = requests_of([prompt], max_tokens=MAX_TOKENS)
    steps = finish(engine.core, [request])
    num_verified = sum(step.num_verified_tokens for step in steps)
    return request.output_token_ids.tolist(), len(steps), num_verified


def test_answers_are_kept_over_a_restart(tmp_path):
    first = engine_of(datastore_memory=tmp_path / "kept")
    expected, num_steps, _ = answer(first)
    first.close()
    second = engine_of(datastore_memory=str(tmp_path / "kept"))
    again, num_repeated, _ = answer(second)
    second.close()
    assert again == expected and num_repeated <= 3 + MAX_TOKENS // 10 < num_steps


def test_the_default_uses_the_store_that_comes_with_the_model():
    assert EngineConfig().drafters == ("prompt-lookup", "recycling", "prediction", "datastore")
    assert EngineConfig(datastore="none").drafters == ("prompt-lookup", "recycling", "prediction")
    assert EngineConfig(datastore="none", datastore_memory="kept").drafters[-1] == "datastore"
    assert EngineConfig(model="some/model").drafters == ("prompt-lookup", "recycling", "prediction")
    assert EngineConfig(model="some/model", datastore="folder").drafters[-1] == "datastore"
    assert datastore_folder(None, f"folder/../{DEFAULT_MODEL}") is None
    with_store, without = (answer(engine_of(datastore=name)) for name in (None, "none"))
    assert with_store[0] == without[0] and with_store[2] > without[2]


def test_the_shipped_store_is_small_and_of_todays_tokens():
    folder = shipped_folder("datastores", DEFAULT_MODEL)
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert (
        files.keys() == {"ngrams.bin", "datastore.json", "README.md"} and sum(files.values()) < 4e6
    )
    loaded = load_once(DEFAULT_MODEL, dtype="auto", device="cpu")
    Datastore(folder).check_for(quick_digest(loaded.tokenizer), loaded.vocab_size, DEFAULT_MODEL)


def test_a_store_of_another_tokenizer_is_refused(tmp_path):
    counts = NgramCounts()
    counts.add(np.array([1, 2] * 9))
    write_datastore(tmp_path / "store", counts, model="other", tokenizer="digest", vocab_size=49152)
    with pytest.raises(ValueError, match=r"built for the tokenizer of 'other' .* --datastore none"):
        engine_of(datastore=str(tmp_path / "store"))


def test_what_is_wrong_with_a_store_is_said_before_a_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("smartspec.engine.runtime.build.load_model", None)
    with pytest.raises(ValueError, match="is no datastore"):
        engine_of(datastore=str(tmp_path))
    shutil.copytree(shipped_folder("datastores", DEFAULT_MODEL), tmp_path / "cut")
    (tmp_path / "cut" / "ngrams.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="cut short"):
        engine_of(datastore=str(tmp_path / "cut"))


@pytest.mark.parametrize("options", [{"datastore": "folder"}, {"datastore_memory": "folder"}])
def test_a_store_that_no_drafter_reads_is_refused(options):
    with pytest.raises(
        ValueError, match=r"'folder' is read by no drafter of recycling: add datastore"
    ):
        EngineConfig(drafters=("recycling",), **options)


def test_digests_tell_tokenizers_apart():
    tokenizer = default_tokenizer()
    assert quick_digest(tokenizer) == quick_digest(default_tokenizer())
    tokenizer.add_tokens(["a new token"])
    assert quick_digest(tokenizer) != quick_digest(default_tokenizer())
