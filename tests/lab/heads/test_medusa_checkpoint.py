"""Medusa heads on disk: the layouts in the field, and what is said of others."""

import json
from pathlib import Path

import pytest
import torch
from eagle3_files import write
from lab_head_cases import MEDUSA, MEDUSA_OUTPUTS
from make_heads import make_medusa
from tiny_models import SHAPE, VOCABULARY, as_loaded, tiny_llama

from lab.heads.medusa.checkpoint import write_medusa
from smartspec.engine.drafting.head.kinds import kind_of, load_head

SIZE = SHAPE["hidden_size"]
TARGET = as_loaded(tiny_llama(0))


def medusa_folder(
    folder: Path, name: str = "medusa_lm_head.pt"
) -> tuple[Path, dict[str, torch.Tensor]]:
    """As the original checkpoints are: a config that counts too few heads, and lists of blocks and
    outputs."""
    random = torch.Generator().manual_seed(0)
    weights = {}
    for head in range(3):
        weights[f"{head}.0.linear.weight"] = torch.randn(SIZE, SIZE, generator=random)
        weights[f"{head}.0.linear.bias"] = torch.randn(SIZE, generator=random)
        weights[f"{head}.1.weight"] = torch.randn(VOCABULARY, SIZE, generator=random)
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "tiny"}
    return write(folder, config, weights, name), weights


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
def test_original_medusa_heads_are_read(tmp_path, name):
    folder, weights = medusa_folder(tmp_path / "heads", name)
    assert kind_of(folder) == "medusa"
    head, _ = load_head(folder, TARGET)
    assert head.config.num_heads == 3 and head.target_ids.tolist() == list(range(VOCABULARY))
    for number in range(3):
        assert torch.equal(
            head.blocks[number].layers[0].weight, weights[f"{number}.0.linear.weight"]
        )
        assert torch.equal(head.blocks[number].layers[0].bias, weights[f"{number}.0.linear.bias"])
        assert torch.equal(head.output(number).weight, weights[f"{number}.1.weight"])


@pytest.mark.parametrize("case", [MEDUSA, MEDUSA_OUTPUTS], ids=str)
def test_what_is_written_is_read(tmp_path, case):
    head = case.make()
    write_medusa(tmp_path, head)
    read, _ = load_head(tmp_path, TARGET)
    assert type(read) is type(head) and torch.equal(read.target_ids, head.target_ids)
    for name, tensor in head.state_dict().items():
        assert torch.allclose(read.state_dict()[name].float(), tensor.float(), atol=1e-2, rtol=1e-2)


def test_heads_that_vllm_loads_are_read(tmp_path):
    """Those of the tests that run vLLM itself."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(tiny_llama().config.to_dict()))
    medusa, _ = load_head(Path(make_medusa(tmp_path / "medusa", str(model), 3)), TARGET)
    assert medusa.config.num_heads == 3 and medusa.config.num_outputs == 1


def test_medusa_heads_for_another_target_are_refused(tmp_path):
    folder, weights = medusa_folder(tmp_path / "heads")
    vllm = {"model_type": "medusa", "num_heads": 3, "vocab_size": VOCABULARY}
    of_another = {
        name: tensor[:, :16] if tensor.dim() > 1 else tensor for name, tensor in weights.items()
    }
    with pytest.raises(
        ValueError,
        match="hidden states of size 16, the target's are of 32; use some that were trained",
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
        (
            {},
            {"token_map": torch.zeros(3, 3, dtype=torch.int64)},
            r"token_map is of shape \(3, 3\)",
        ),
        ({}, {"token_map": torch.zeros(3)}, "token_map is torch.float32, it must hold integers"),
        (
            {"vocab_size": VOCABULARY},
            {"token_map": torch.arange(60), "0.1.weight": torch.zeros(50, SIZE)},
            "0.weight is",
        ),
        (
            {},
            {"0.0.linear.weight": torch.full((SIZE, SIZE), torch.inf)},
            "holds numbers that are not finite",
        ),
    ],
)
def test_medusa_heads_that_lie_are_refused(tmp_path, config, tensors, message):
    folder, weights = medusa_folder(tmp_path / "heads")
    with pytest.raises(ValueError, match=message):
        load_head(write(folder, {"model_type": "medusa"} | config, weights | tensors), TARGET)


def test_without_the_lab_it_is_said_where_the_kind_is(tmp_path, monkeypatch):
    folder, _ = medusa_folder(tmp_path / "heads")
    monkeypatch.setattr("smartspec.engine.drafting.head.kinds.lab_table", lambda module, name: {})
    with pytest.raises(
        ValueError, match="heads is a head of type 'medusa': that kind is in the repository's lab"
    ):
        load_head(folder, TARGET)
