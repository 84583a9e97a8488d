"""Heads of other kinds than EAGLE-3 on disk: the layouts in the field, and what is said of
others."""

import json
from pathlib import Path

import pytest
import torch
from eagle3_files import CONFIG, KEY, original, random, target_of, tensors, write
from head_cases import EAGLE, P_EAGLE
from make_heads import make_eagle
from safetensors.torch import load_file, save_file
from tiny_models import SHAPE, VOCABULARY, as_loaded, tiny_llama

from lab.heads.acceptance_head import AcceptanceHead, JudgedHead
from lab.heads.p_eagle.head import PEagleHead
from lab.heads.write import write_head
from smartspec.core import lab_tables
from smartspec.engine.drafting.head.kinds import ACCEPTANCE, is_head, kind_of, load_head

SIZE = SHAPE["hidden_size"]
TARGET = as_loaded(tiny_llama(0))


def eagle_folder(folder: Path, name: str = "model.safetensors", **changes: object) -> Path:
    """As the original checkpoints are: the config of the layer, its weights and the target's
    embedding."""
    head = EAGLE.make()
    config = (
        head.config.layer.to_dict()
        | {"architectures": ["LlamaForCausalLM"], "bias": True}
        | changes
    )
    weights = {**head.state_dict(), "embed_tokens.weight": torch.zeros(VOCABULARY, SIZE)}
    return write(folder, config, weights, name)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_original_eagle_heads_are_read(tmp_path, name):
    folder = eagle_folder(tmp_path / "head", name)
    assert is_head(str(folder))
    head, embedding = load_head(folder, TARGET)
    assert embedding is None and head.config.taps == (SHAPE["num_hidden_layers"] + 1,)
    for key, tensor in EAGLE.make().state_dict().items():
        assert torch.equal(head.state_dict()[key], tensor)


def test_eagle_heads_in_the_speculators_format_are_read(tmp_path):
    expected = EAGLE.make().state_dict()
    renamed = {
        k.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc."): t
        for k, t in expected.items()
    }
    config = {
        "speculators_model_type": "eagle",
        "fusion_bias": True,
        "layernorms": False,
        "transformer_layer_config": EAGLE.make().config.layer.to_dict(),
    }
    folder = write(tmp_path / "head", config, renamed)
    head, _ = load_head(folder, TARGET)
    assert all(torch.equal(head.state_dict()[key], tensor) for key, tensor in expected.items())
    write(folder, config | {"layernorms": True}, renamed)
    with pytest.raises(ValueError, match="layernorms, which are not supported: use one without"):
        load_head(folder, TARGET)


def test_what_is_written_is_read(tmp_path):
    head = P_EAGLE.make()
    write_head(tmp_path, head, "tiny", "LlamaForCausalLM")
    read, _ = load_head(tmp_path, TARGET)
    assert type(read) is type(head) and torch.equal(read.target_ids, head.target_ids)
    for name, tensor in head.state_dict().items():
        assert torch.allclose(read.state_dict()[name].float(), tensor.float(), atol=1e-2, rtol=1e-2)
    assert (read.mask_token_id, read.num_depths) == (7, 4)
    assert (
        json.loads((tmp_path / "config.json").read_text())["speculators_config"]["algorithm"]
        == "peagle"
    )


def test_an_eagle_head_that_vllm_loads_is_read(tmp_path):
    """That of the tests that run vLLM itself."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(tiny_llama().config.to_dict()))
    eagle, _ = load_head(Path(make_eagle(tmp_path / "eagle", str(model))), TARGET)
    assert eagle.config.layer.intermediate_size == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hidden_size": 64},
            "hidden states of size 64, the target's are of 32; use one that was trained for this",
        ),
        ({"vocab_size": 77}, "a vocabulary of 77 tokens, the target has 61"),
        ({"intermediate_size": 99}, "its config says .99"),
        (
            {"speculators_model_type": "dflash"},
            "type 'dflash': use one of type eagle3, eagle, peagle, ",
        ),
    ],
)
def test_eagle_heads_for_another_target_are_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        load_head(eagle_folder(tmp_path / "head", **change), TARGET)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"target_hidden_size": 64},
            "reads features of size 64, the target's are of 32; use one that was trained for",
        ),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3]}, r"taps layers \[1, 3\], the target has 2"),
        ({"eagle_aux_hidden_state_layer_ids": "last"}, r"taps layers \['last'\], the target has 2"),
        ({"draft_vocab_size": "all"}, "drafts from 'all' tokens, the target has 61"),
        (
            {"hidden_size": 33},
            r"config.json is of no layer \(.*not a multiple.*\): download or train the head again",
        ),
        (
            {"hidden_size": "large"},
            r"config.json is of no layer \(.*expected int.*\): download or train",
        ),
        (
            {"transformer_layer_config": 5},
            r"config.json is of no layer \(.*\): download or train the head again",
        ),
    ],
)
def test_eagle3_heads_for_another_target_or_of_no_shape_are_refused(tmp_path, change, message):
    write_head(tmp_path, P_EAGLE.make(), "tiny", "LlamaForCausalLM")
    config = json.loads((tmp_path / "config.json").read_text())
    of_layer = {
        name: value for name, value in change.items() if name in config["transformer_layer_config"]
    }
    config["transformer_layer_config"] |= of_layer
    (tmp_path / "config.json").write_text(json.dumps(config | (change if not of_layer else {})))
    with pytest.raises(ValueError, match=message):
        load_head(tmp_path, TARGET)


def test_an_eagle_head_of_several_layers_is_refused(tmp_path):
    folder = eagle_folder(tmp_path / "head", speculators_model_type="eagle", num_hidden_layers=2)
    with pytest.raises(ValueError, match="it has 2 layers, one is supported"):
        load_head(folder, TARGET)


def test_a_model_of_one_layer_is_no_head(tmp_path):
    folder = eagle_folder(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: t for name, t in tensors.items() if "fc" not in name}, folder / "model.safetensors"
    )
    assert not is_head(str(folder))


def test_p_eagle_heads_without_a_mask_token_are_refused(tmp_path):
    write_head(tmp_path, P_EAGLE.make(), "tiny", "LlamaForCausalLM")
    config = json.loads((tmp_path / "config.json").read_text())
    for token_id in (None, VOCABULARY):
        (tmp_path / "config.json").write_text(json.dumps(config | {"mask_token_id": token_id}))
        with pytest.raises(
            ValueError, match=f"mask_token_id is {token_id}, it must be a token of the 61"
        ):
            load_head(tmp_path, TARGET)
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: t for name, t in tensors.items() if name != "mask_hidden"},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(OSError, match="lacks 1 weights, 'mask_hidden'"):
        load_head(tmp_path, TARGET)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "medusa_lm_head.pt"])
def test_damaged_weights_are_refused(tmp_path, name):
    folder = eagle_folder(tmp_path / "head", name, speculators_model_type="eagle")
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(OSError, match=r"damaged or cut short .* download or train it again"):
        load_head(folder, TARGET)


def test_a_variant_of_p_eagle_is_told_by_its_weights(tmp_path):
    found = tensors() | {"mask_hidden": random(2 * SIZE)}
    head, _ = load_head(
        write(tmp_path / "head", original(ptd_token_id=7, eagle_config={KEY: [1, 2]}), found),
        target_of(4),
    )
    assert isinstance(head, PEagleHead) and head.mask_token_id == 7
    assert torch.equal(head.mask_hidden.flatten(), found["mask_hidden"])


@pytest.mark.parametrize("kind", ["eagle", "peagle", "judged"])
def test_without_the_lab_it_is_said_where_a_kind_is(tmp_path, monkeypatch, kind):
    folder = tmp_path / "head"
    if kind == "eagle":
        eagle_folder(folder)
    elif kind == "peagle":
        write_head(folder, P_EAGLE.make(), "tiny", "LlamaForCausalLM")
    else:
        write(folder, CONFIG, tensors())
        save_file(AcceptanceHead(32).state_dict(), folder / ACCEPTANCE)
        assert isinstance(load_head(folder, target_of(4))[0], JudgedHead)
    monkeypatch.setattr(lab_tables.importlib, "import_module", missing)
    remedy = (
        "; or delete acceptance.safetensors: the head drafts without it"
        if kind == "judged"
        else "$"
    )
    with pytest.raises(
        ValueError,
        match=rf"of type {kind_of(folder)!r}: that kind is in the repository's lab.*{remedy}",
    ):
        load_head(folder, target_of(4))


def missing(name: str) -> None:
    raise ModuleNotFoundError(name=name)
