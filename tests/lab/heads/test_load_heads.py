"""Heads of other kinds than EAGLE-3 on disk: the layouts in the field, and what is said of
others."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from eagle3_files import CONFIG, KEY, original, random, target_of, tensors, without, write
from head_cases import EAGLE, MEDUSA, MEDUSA_OUTPUTS, P_EAGLE, REDRAFTER
from json_files import read_json
from make_heads import make_eagle, make_medusa
from safetensors.torch import load_file, save_file
from tiny_models import SHAPE, VOCABULARY, as_loaded, tiny_llama

from lab.heads.acceptance_head import AcceptanceHead, JudgedHead
from lab.heads.medusa.checkpoint import write_medusa
from lab.heads.p_eagle.head import PEagleHead
from lab.heads.redrafter.checkpoint import write_redrafter
from lab.heads.write import write_head
from smartspec.engine.drafting.head import kinds
from smartspec.engine.drafting.head.kinds import ACCEPTANCE, is_head, kind_of, load_head

SIZE = SHAPE["hidden_size"]
TARGET = as_loaded(tiny_llama(0))


def eagle_folder(folder: Path, name: str = "model.safetensors", **changes: object) -> Path:
    """As the original checkpoints are: the config of the layer, its weights and the target's
    embedding."""
    head = EAGLE.make()
    config = head.config.layer.to_dict() | {"architectures": ["LlamaForCausalLM"], "bias": True}
    weights = {**head.state_dict(), "embed_tokens.weight": torch.zeros(VOCABULARY, SIZE)}
    return write(folder, config | changes, weights, name)


def p_eagle_folder(folder: Path, **changes: object) -> Path:
    """As training writes them, but for changes of the config or of its layer."""
    write_head(folder, P_EAGLE.make(), "tiny", "LlamaForCausalLM")
    config = read_json(folder / "config.json")
    layer = config["transformer_layer_config"]
    for name, value in changes.items():
        (layer if name in layer else config)[name] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


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


@pytest.mark.parametrize(
    ("case", "kind", "write_it"),
    [
        (P_EAGLE, "peagle", partial(write_head, target_name="tiny", architecture="Llama")),
        (MEDUSA, "medusa", write_medusa),
        (MEDUSA_OUTPUTS, "medusa", write_medusa),
        (REDRAFTER, "redrafter", partial(write_redrafter, target_name="tiny")),
    ],
)
def test_what_is_written_is_read(tmp_path, case, kind, write_it):
    """The weights in bfloat16."""
    head = case.make()
    write_it(tmp_path, head)
    read, embedding = load_head(tmp_path, TARGET)
    assert kind_of(tmp_path) == kind and embedding is None and type(read) is type(head)
    for name, tensor in head.state_dict().items():
        kept = tensor.bfloat16().float() if tensor.is_floating_point() else tensor
        assert torch.equal(read.state_dict()[name], kept)
    assert kind == "peagle" or read.config == head.config


def test_a_p_eagle_head_keeps_its_mask_token_and_depth(tmp_path):
    read, _ = load_head(p_eagle_folder(tmp_path), TARGET)
    assert (read.mask_token_id, read.num_depths) == (7, 4)
    config = read_json(tmp_path / "config.json")
    assert config["speculators_config"]["algorithm"] == "peagle"


def test_heads_that_vllm_loads_are_read(tmp_path):
    """Those of the tests that run vLLM itself."""
    model = str(tmp_path / "model")
    tiny_llama().config.save_pretrained(model)
    eagle, _ = load_head(Path(make_eagle(tmp_path / "eagle", model)), TARGET)
    assert eagle.config.layer.intermediate_size == 64
    medusa, _ = load_head(Path(make_medusa(tmp_path / "medusa", model, 3)), TARGET)
    assert medusa.config.num_heads == 3 and medusa.config.num_outputs == 1


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
        (
            {"speculators_model_type": "eagle", "num_hidden_layers": 2},
            "it has 2 layers, one is supported",
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
        ({"mask_token_id": None}, "mask_token_id is None, it must be a token of the 61"),
        ({"mask_token_id": VOCABULARY}, "mask_token_id is 61, it must be a token of the 61"),
    ],
)
def test_p_eagle_heads_for_another_target_or_of_no_shape_are_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        load_head(p_eagle_folder(tmp_path, **change), TARGET)


def test_a_model_of_one_layer_is_no_head(tmp_path):
    folder = eagle_folder(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    save_file(without(tensors, "fc.weight", "fc.bias"), folder / "model.safetensors")
    assert not is_head(str(folder))


def test_p_eagle_heads_without_a_mask_are_refused(tmp_path):
    p_eagle_folder(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(without(tensors, "mask_hidden"), tmp_path / "model.safetensors")
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
        p_eagle_folder(folder)
    else:
        write(folder, CONFIG, tensors())
        save_file(AcceptanceHead(32).state_dict(), folder / ACCEPTANCE)
        assert isinstance(load_head(folder, target_of(4))[0], JudgedHead)
    monkeypatch.setattr(kinds, "lab_table", lambda module, name: {})
    remedy = "; or delete acceptance.safetensors: the head drafts without it"
    with pytest.raises(
        ValueError,
        match=rf"of type {kind_of(folder)!r}: that kind is in the repository's lab.*"
        rf"{remedy if kind == 'judged' else '$'}",
    ):
        load_head(folder, target_of(4))
