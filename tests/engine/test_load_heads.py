"""Heads of other kinds than EAGLE-3 on disk: the layouts in the field, and what is said of others."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_head_kinds import random_head
from tiny_models import SHAPE, VOCABULARY, as_loaded, tiny_llama

from smartspec.engine.drafting.head_checkpoint import write_head
from smartspec.engine.drafting.head_kinds import is_head, kind_of, load_head
from smartspec.engine.drafting.medusa_checkpoint import write_medusa

sys.path.append(str(Path(__file__).parents[1] / "vllm_real"))
from make_heads import make_eagle, make_medusa

SIZE = SHAPE["hidden_size"]
TARGET = as_loaded(tiny_llama(0))


def write(folder: Path, config: dict, tensors: dict[str, torch.Tensor], name: str = "model.safetensors") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if name.endswith(".safetensors"):
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / name)
    else:
        torch.save(tensors, folder / name)
    return folder


def eagle_folder(folder: Path, name: str = "model.safetensors", **changes: object) -> Path:
    """As the original checkpoints are: the config of the layer, its weights and the target's embedding."""
    head = random_head("eagle")
    config = head.config.layer.to_dict() | {"architectures": ["LlamaForCausalLM"], "bias": True} | changes
    weights = {**head.state_dict(), "embed_tokens.weight": torch.zeros(VOCABULARY, SIZE)}
    return write(folder, config, weights, name)


def medusa_folder(folder: Path, name: str = "medusa_lm_head.pt") -> tuple[Path, dict[str, torch.Tensor]]:
    """As the original checkpoints are: a config that counts too few heads, and lists of blocks and outputs."""
    random = torch.Generator().manual_seed(0)
    weights = {}
    for head in range(3):
        weights[f"{head}.0.linear.weight"] = torch.randn(SIZE, SIZE, generator=random)
        weights[f"{head}.0.linear.bias"] = torch.randn(SIZE, generator=random)
        weights[f"{head}.1.weight"] = torch.randn(VOCABULARY, SIZE, generator=random)
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "tiny"}
    return write(folder, config, weights, name), weights


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_original_eagle_heads_are_read(tmp_path, name):
    folder = eagle_folder(tmp_path / "head", name)
    assert is_head(str(folder))
    head, embedding = load_head(folder, TARGET)
    assert embedding is None and head.config.taps == (SHAPE["num_hidden_layers"] + 1,)
    for key, tensor in random_head("eagle").state_dict().items():
        assert torch.equal(head.state_dict()[key], tensor)


def test_eagle_heads_in_the_speculators_format_are_read(tmp_path):
    expected = random_head("eagle").state_dict()
    renamed = {k.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc."): t for k, t in expected.items()}
    config = {
        "speculators_model_type": "eagle",
        "fusion_bias": True,
        "layernorms": False,
        "transformer_layer_config": random_head("eagle").config.layer.to_dict(),
    }
    folder = write(tmp_path / "head", config, renamed)
    head, _ = load_head(folder, TARGET)
    assert all(torch.equal(head.state_dict()[key], tensor) for key, tensor in expected.items())
    write(folder, config | {"layernorms": True}, renamed)
    with pytest.raises(ValueError, match="layernorms, which are not supported: use one without"):
        load_head(folder, TARGET)


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
def test_original_medusa_heads_are_read(tmp_path, name):
    folder, weights = medusa_folder(tmp_path / "heads", name)
    assert kind_of(folder) == "medusa"
    head, _ = load_head(folder, TARGET)
    assert head.config.num_heads == 3 and head.target_ids.tolist() == list(range(VOCABULARY))
    for number in range(3):
        assert torch.equal(head.blocks[number].layers[0].weight, weights[f"{number}.0.linear.weight"])
        assert torch.equal(head.blocks[number].layers[0].bias, weights[f"{number}.0.linear.bias"])
        assert torch.equal(head.output(number).weight, weights[f"{number}.1.weight"])


@pytest.mark.parametrize("kind", ["p-eagle", "medusa", "medusa with an output for each head"])
def test_what_is_written_is_read(tmp_path, kind):
    head = random_head(kind)
    if kind == "p-eagle":
        write_head(tmp_path, head, "tiny", "LlamaForCausalLM")
    else:
        write_medusa(tmp_path, head)
    read, _ = load_head(tmp_path, TARGET)
    assert type(read) is type(head) and torch.equal(read.target_ids, head.target_ids)
    for name, tensor in head.state_dict().items():
        assert torch.allclose(read.state_dict()[name].float(), tensor.float(), atol=1e-2, rtol=1e-2)
    if kind == "p-eagle":
        assert (read.mask_token_id, read.num_depths) == (7, 4)
        assert json.loads((tmp_path / "config.json").read_text())["speculators_config"]["algorithm"] == "peagle"


def test_heads_that_vllm_loads_are_read(tmp_path):
    """Those of the tests that run vLLM itself."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(tiny_llama().config.to_dict()))
    eagle, _ = load_head(Path(make_eagle(tmp_path / "eagle", str(model))), TARGET)
    medusa, _ = load_head(Path(make_medusa(tmp_path / "medusa", str(model), 3)), TARGET)
    assert eagle.config.layer.intermediate_size == 64
    assert medusa.config.num_heads == 3 and medusa.config.num_outputs == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 64}, "hidden states of size 64, the target's are of 32; use one that was trained for this"),
        ({"vocab_size": 77}, "a vocabulary of 77 tokens, the target has 61"),
        ({"intermediate_size": 99}, "its config says .99"),
        ({"speculators_model_type": "dflash"}, "type 'dflash': use one of type eagle, eagle3, peagle, medusa"),
    ],
)
def test_eagle_heads_for_another_target_are_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        load_head(eagle_folder(tmp_path / "head", **change), TARGET)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_hidden_size": 64}, "reads features of size 64, the target's are of 32; use one that was trained for"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3]}, r"taps layers \[1, 3\], the target has 2"),
        ({"eagle_aux_hidden_state_layer_ids": "last"}, r"taps layers \['last'\], the target has 2"),
        ({"draft_vocab_size": "all"}, "drafts from 'all' tokens, the target has 61"),
        ({"hidden_size": 33}, r"config.json is of no layer \(.*not a multiple.*\): download or train the head again"),
        (
            {"hidden_size": "large"},
            r"config.json is of no layer \(.*expected int.*\): download or train",
        ),
        ({"transformer_layer_config": 5}, r"config.json is of no layer \(.*\): download or train the head again"),
    ],
)
def test_eagle3_heads_for_another_target_or_of_no_shape_are_refused(tmp_path, change, message):
    write_head(tmp_path, random_head("p-eagle"), "tiny", "LlamaForCausalLM")
    config = json.loads((tmp_path / "config.json").read_text())
    of_layer = {name: value for name, value in change.items() if name in config["transformer_layer_config"]}
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
    save_file({name: t for name, t in tensors.items() if "fc" not in name}, folder / "model.safetensors")
    assert not is_head(str(folder))


def test_medusa_heads_for_another_target_are_refused(tmp_path):
    folder, weights = medusa_folder(tmp_path / "heads")
    vllm = {"model_type": "medusa", "num_heads": 3, "vocab_size": VOCABULARY}
    of_another = {name: tensor[:, :16] if tensor.dim() > 1 else tensor for name, tensor in weights.items()}
    with pytest.raises(
        ValueError, match="hidden states of size 16, the target's are of 32; use some that were trained"
    ):
        load_head(write(folder, vllm, of_another), TARGET)
    with pytest.raises(ValueError, match="for a vocabulary of 99 tokens, the target has 61"):
        load_head(write(folder, vllm | {"vocab_size": 99}, weights), TARGET)
    outside = weights | {"token_map": torch.full((VOCABULARY,), 61)}
    with pytest.raises(ValueError, match="token_map names token 61, the target has 61"):
        load_head(write(folder, vllm, outside), TARGET)
    with pytest.raises(OSError, match=r"lacks 3 weights, .* download or train it again"):
        load_head(write(folder, vllm | {"num_heads": 4}, weights), TARGET)


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"num_heads": 10**9}, {}, "holds 1000000000 Medusa heads of 1 layers, 1 to 1000 can be"),
        ({"num_heads": -3}, {}, "holds -3 Medusa heads"),
        ({}, {"99999.0.linear.weight": torch.zeros(SIZE, SIZE)}, "holds 100000 Medusa heads"),
        ({}, {"token_map": torch.zeros(3, 3, dtype=torch.int64)}, r"token_map is of shape \(3, 3\)"),
        ({}, {"token_map": torch.zeros(3)}, "token_map is torch.float32, it must hold integers"),
        (
            {"vocab_size": VOCABULARY},
            {"token_map": torch.arange(60), "0.1.weight": torch.zeros(50, SIZE)},
            "0.weight is",
        ),
        ({}, {"0.0.linear.weight": torch.full((SIZE, SIZE), torch.inf)}, "holds numbers that are not finite"),
    ],
)
def test_medusa_heads_that_lie_are_refused(tmp_path, config, tensors, message):
    folder, weights = medusa_folder(tmp_path / "heads")
    with pytest.raises(ValueError, match=message):
        load_head(write(folder, {"model_type": "medusa"} | config, weights | tensors), TARGET)


def test_p_eagle_heads_without_a_mask_token_are_refused(tmp_path):
    write_head(tmp_path, random_head("p-eagle"), "tiny", "LlamaForCausalLM")
    config = json.loads((tmp_path / "config.json").read_text())
    for token_id in (None, VOCABULARY):
        (tmp_path / "config.json").write_text(json.dumps(config | {"mask_token_id": token_id}))
        with pytest.raises(ValueError, match=f"mask_token_id is {token_id}, it must be a token of the 61"):
            load_head(tmp_path, TARGET)
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if name != "mask_hidden"}, tmp_path / "model.safetensors")
    with pytest.raises(OSError, match="lacks 1 weights, 'mask_hidden'"):
        load_head(tmp_path, TARGET)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "medusa_lm_head.pt"])
def test_damaged_weights_are_refused(tmp_path, name):
    folder = eagle_folder(tmp_path / "head", name, speculators_model_type="eagle")
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(OSError, match=r"damaged or cut short .* download or train it again"):
        load_head(folder, TARGET)
