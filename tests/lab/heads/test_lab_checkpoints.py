"""Medusa and ReDrafter heads on disk: the layouts in the field, and what is said of others."""

from pathlib import Path

import pytest
import torch
from eagle3_files import write
from head_cases import REDRAFTER
from json_files import change_json
from tiny_models import SHAPE, VOCABULARY, as_loaded, tiny_llama

from lab.heads.redrafter.checkpoint import write_redrafter
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
        (layer,) = head.blocks[number].layers
        assert torch.equal(layer.weight, weights[f"{number}.0.linear.weight"])
        assert torch.equal(layer.bias, weights[f"{number}.0.linear.bias"])
        assert torch.equal(head.output(number).weight, weights[f"{number}.1.weight"])


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        (
            {},
            {"0.1.weight": torch.zeros(VOCABULARY, 16)},
            "hidden states of size 16, the target's are of 32; use some that were trained",
        ),
        ({"vocab_size": 99}, {}, "for a vocabulary of 99 tokens, the target has 61"),
        (
            {},
            {"token_map": torch.full((VOCABULARY,), 61)},
            "token_map names token 61, the target has 61",
        ),
        ({"num_heads": 4}, {}, r"lacks 3 weights, .* download or train it again"),
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
def test_medusa_heads_that_do_not_fit_or_lie_are_refused(tmp_path, config, tensors, message):
    folder, weights = medusa_folder(tmp_path / "heads")
    with pytest.raises((ValueError, OSError), match=message):
        load_head(write(folder, {"model_type": "medusa"} | config, weights | tensors), TARGET)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 64}, "hidden states of size 64, the target's are of 32"),
        ({"vocab_size": 99}, "a vocabulary of 99 tokens, the target has 61"),
        ({"draft_vocab_size": "many"}, "draft_vocab_size is 'many', it must be a number"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"draft_vocab_size": 9}, r"is \(40,.*its config says \(9"),
        ({"num_hidden_layers": 3}, "lacks 2 weights, 'blocks.2.bias'"),
    ],
)
def test_redrafter_heads_that_do_not_fit_are_refused(tmp_path, change, message):
    write_redrafter(tmp_path, REDRAFTER.make(), "tiny")
    change_json(tmp_path / "config.json", change)
    with pytest.raises((ValueError, OSError), match=message):
        load_head(tmp_path, TARGET)
