"""EAGLE-3 checkpoints as they are published: what is read of them, and what is said."""

import json
import logging

import pytest
import torch
from eagle3_files import (
    CONFIG,
    DRAFTS,
    KEY,
    LAYER,
    LAYERS,
    original,
    read,
    target_of,
    tensors,
    without,
    write,
)
from safetensors.torch import save_file
from tiny_models import VOCABULARY

from smartspec.engine.drafting.head.kinds import is_head, kind_of, load_head

# ---- layouts


def test_the_original_layout_is_read(tmp_path):
    expected = read(tmp_path, CONFIG, tensors()).state_dict()
    found = read(tmp_path, original(eagle_config={KEY: [1, 2]}), tensors(prefix="midlayer."))
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, expected[name])


def test_damaged_files_are_refused(tmp_path):
    folder = write(tmp_path / "head", CONFIG, tensors())
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(OSError, match="damaged or cut short"):
        load_head(folder, target_of(LAYERS))
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"holds no model\.safetensors"):
        load_head(folder, target_of(LAYERS))


# ---- layers that are read


def test_layers_that_are_not_named_are_guessed_and_said(tmp_path, caplog):
    """By SafeAILab/EAGLE's own rule: what layers 2, L / 2 and L - 3 are given."""
    for config in (
        without(CONFIG, KEY),
        CONFIG | {KEY: []},
        original(),
        original(eagle_config={KEY: []}),
    ):
        caplog.clear()
        prefix = "layers.0." if "speculators_model_type" in config else "midlayer."
        head = read(tmp_path, config, tensors(taps=3, prefix=prefix))
        assert head.config.taps == (2, LAYERS // 2, LAYERS - 3)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert (
            "[2, 6, 9] are taken" in record.getMessage()
            and f"set {KEY} in config.json" in record.getMessage()
        )


@pytest.mark.parametrize(
    "named",
    [
        {KEY: [5, 1]},
        {"eagle_config": {KEY: [5, 1]}},
        {"transformer_layer_config": LAYER | {KEY: [1, 5]}},
    ],
)
def test_named_layers_are_taken_in_the_targets_order(tmp_path, caplog, named):
    head = read(tmp_path, without(CONFIG, KEY) | named, tensors())
    assert head.config.taps == (1, 5) and not caplog.records


@pytest.mark.parametrize(
    ("config", "taps", "layers", "message"),
    [
        (
            without(CONFIG, KEY),
            4,
            LAYERS,
            rf"fc.weight reads 4 layers .* does not say which: set {KEY}",
        ),
        (without(CONFIG, KEY), 3, 3, rf"a target of 3 layers has not the usual ones .*: set {KEY}"),
        (
            CONFIG,
            3,
            LAYERS,
            rf"fc.weight reads 3 layers of size 32, its config.json names 2 \(\[1, 2\]\): set {KEY}",  # noqa: E501
        ),
        (CONFIG | {KEY: [0, 2]}, 2, LAYERS, r"it taps layers \[0, 2\], the target has 12"),
        (CONFIG | {KEY: [True, 2]}, 2, LAYERS, r"it taps layers \[True, 2\], the target has 12"),
        (
            original(eagle_config={"use_aux_hidden_state": False}),
            2,
            LAYERS,
            "use_aux_hidden_state is false",
        ),
    ],
)
def test_layers_that_cannot_be_told_are_refused(tmp_path, config, taps, layers, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, config, tensors(taps=taps), layers)


# ---- what is used of a checkpoint


def test_an_original_head_of_the_whole_vocabulary_is_told_by_its_architecture(tmp_path):
    config = without(original(eagle_config={KEY: [1, 2]}), "draft_vocab_size")
    found = without(tensors(prefix="midlayer.", drafts=VOCABULARY), "d2t", "t2d")
    folder = write(tmp_path / "head", config, found)
    assert is_head(str(folder)) and kind_of(folder) == "eagle3"
    assert load_head(folder, target_of(LAYERS))[0].target_ids.tolist() == list(range(VOCABULARY))


def test_a_map_that_is_missing_is_made_of_the_other(tmp_path):
    expected = tensors()["d2t"] + torch.arange(DRAFTS)
    head = read(tmp_path, CONFIG, without(tensors(), "d2t"))
    assert torch.equal(head.target_ids, expected)
    with pytest.raises(
        OSError, match="lacks weights, 'd2t' among them, which names the 40 of 61 tokens"
    ):
        read(tmp_path, CONFIG, without(tensors(), "d2t", "t2d"))


def test_maps_that_contradict_each_other_are_said(tmp_path, caplog):
    found = tensors()
    read(tmp_path, CONFIG, found | {"t2d": torch.zeros(VOCABULARY, dtype=torch.bool)})
    assert not caplog.records, "of maps that were never set nothing is to be said"
    read(tmp_path, CONFIG, found | {"t2d": ~found["t2d"]})
    assert "d2t and t2d name different tokens" in caplog.text
    read(tmp_path, CONFIG, found | {"d2t": -torch.arange(DRAFTS)})
    assert "d2t names a token twice" in caplog.text


def test_weights_in_several_files_are_read(tmp_path):
    folder, found = write(tmp_path / "head", CONFIG, {}), tensors()
    (folder / "model.safetensors").unlink()
    index, parts = {}, [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for part, names in zip(parts, (sorted(found)[::2], sorted(found)[1::2]), strict=True):
        save_file({name: found[name].contiguous() for name in names}, folder / part)
        index |= dict.fromkeys(names, part)
    path = folder / "model.safetensors.index.json"
    with pytest.raises(OSError, match=rf"holds {parts[0]}, but no {path.name}: download"):
        load_head(folder, target_of(LAYERS))
    path.write_text(json.dumps({"weight_map": index}))
    head, _ = load_head(folder, target_of(LAYERS))
    for name in ("fc.weight", "norm.weight", "lm_head.weight"):
        assert torch.equal(head.state_dict()[name], found[name])
    (folder / parts[1]).unlink()
    with pytest.raises(
        OSError, match=rf"lacks '{parts[1]}', 1 of 2 files with its weights: download it again"
    ):
        load_head(folder, target_of(LAYERS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_other_dtypes_are_read(tmp_path, dtype):
    found = {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors().items()}
    found["d2t"] = found["d2t"].to(torch.int32)
    head = read(tmp_path, CONFIG, found)
    assert torch.equal(head.fc.weight, found["fc.weight"].float()) and head.d2t.dtype == torch.int64
