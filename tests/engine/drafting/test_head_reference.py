"""What the heads of EAGLE-3 checkpoints compute, against transformers' own layers."""

import gguf
import numpy as np
import pytest
import torch
from eagle3_files import (
    CONFIG,
    DRAFTS,
    HEAD_DIM,
    LAYER,
    SIZE,
    config_with,
    random,
    read,
    tensors,
    without,
    write,
)
from tiny_models import VOCABULARY, tiny_llama, tiny_runner
from transformers import Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.head.kinds import head_drafter, load_head
from smartspec.engine.models.linear import make_linear
from smartspec.engine.models.quantized import QuantizedLinear, QuantizedWeight


def reference(
    found: dict, config: dict, features: torch.Tensor, embeds: torch.Tensor
) -> torch.Tensor:
    """Probabilities after the last position, by transformers' Qwen3 layer, as speculators' own code
    makes a head of it; without its norms of query and key that is Llama's."""
    rms = torch.nn.functional.rms_norm
    size = found["norm.weight"].shape[0]
    shape = {
        **LAYER,
        **config["transformer_layer_config"],
        "hidden_size": size,
        "attention_bias": True,
    }
    qwen = Qwen3Config(**shape, attn_implementation="eager")
    layer = Qwen3DecoderLayer(qwen, 0).float()
    for name in ("q_proj", "k_proj", "v_proj"):
        outputs = getattr(layer.self_attn, name).out_features
        setattr(layer.self_attn, name, torch.nn.Linear(2 * size, outputs))
    for name in ("gate_proj", "up_proj", "down_proj"):
        old = getattr(layer.mlp, name)
        setattr(layer.mlp, name, torch.nn.Linear(old.in_features, old.out_features))
    for name, parameter in layer.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.zeros_(parameter)
    of_layer = {
        name.removeprefix("layers.0."): t
        for name, t in found.items()
        if name.startswith("layers.0.")
    }
    hidden_norm = of_layer.pop("hidden_norm.weight")
    layer.load_state_dict(of_layer, strict=False)
    if "self_attn.q_norm.weight" not in of_layer:
        layer.self_attn.q_norm = layer.self_attn.k_norm = torch.nn.Identity()
    if "input_norm.weight" in found:
        features = rms(features, features.shape[-1:], found["input_norm.weight"], 1e-5)
    if "fc_norm.0.weight" in found:
        chunks = features.split(SIZE, dim=-1)
        features = torch.cat(
            [rms(c, (SIZE,), found[f"fc_norm.{i}.weight"], 1e-5) for i, c in enumerate(chunks)],
            dim=-1,
        )
    hidden = torch.nn.functional.linear(features, found["fc.weight"], found.get("fc.bias"))
    normed = rms(hidden, (size,), hidden_norm, 1e-5)
    joined = torch.cat([layer.input_layernorm(embeds), normed], dim=-1)[None]
    num = len(hidden)
    turn = LlamaRotaryEmbedding(qwen)(joined, torch.arange(num)[None])
    causal = torch.full((num, num), float("-inf")).triu(1)[None, None]
    attended = layer.self_attn(
        hidden_states=joined, position_embeddings=turn, attention_mask=causal
    )[0][0]
    hidden = (normed if config.get("norm_before_residual") else hidden) + attended
    hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    last = rms(hidden[-1], (size,), found["norm.weight"], 1e-5)
    return torch.nn.functional.linear(
        last, found["lm_head.weight"], found.get("lm_head.bias")
    ).softmax(-1)


def biases(found: dict, *names: str) -> dict:
    return {f"{name}.bias": random(len(found[f"{name}.weight"]), seed=5) for name in names}


ATTENTION = [f"layers.0.self_attn.{name}_proj" for name in "qkvo"]
MLP = [f"layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")]
QK_NORMS = {f"layers.0.self_attn.{name}_norm.weight": random(HEAD_DIM, seed=9) + 1 for name in "qk"}
NARROW = tensors(layer=LAYER | {"hidden_size": 16})
SHAPES = {
    "as it is": ({}, {}),
    "fc.bias": ({}, biases(tensors(), "fc")),
    "attention_bias": ({"attention_bias": True}, biases(tensors(), *ATTENTION)),
    "biases of query, key and value, as in Qwen2": ({}, biases(tensors(), *ATTENTION[:3])),
    "a bias of the query alone": ({}, biases(tensors(), ATTENTION[0])),
    "biases of the MLP": ({}, biases(tensors(), *MLP)),
    "lm_head.bias": ({}, biases(tensors(), "lm_head")),
    "Qwen3's norms": ({"model_type": "qwen3"}, QK_NORMS),
    "norm_before_residual": ({"norm_before_residual": True}, {}),
    "norm_before_fc, said by the weights": ({}, {"input_norm.weight": random(2 * SIZE) + 1}),
    "norm_before_fc": (
        {"eagle_config": {"norm_before_fc": True}},
        {"input_norm.weight": random(2 * SIZE) + 1},
    ),
    "fc_norm": (
        {"fc_norm": True},
        {f"fc_norm.{i}.weight": random(SIZE, seed=i) + 1 for i in range(2)},
    ),
    "an embedding of its own": ({}, {"embed_tokens.weight": random(VOCABULARY, SIZE)}),
    "narrower than the target": (
        {"hidden_size": 16, "target_hidden_size": SIZE},
        {**NARROW, "embed_tokens.weight": random(VOCABULARY, 16)},
    ),
    "rope as in Llama 3": (
        {
            "rope_theta": 5e4,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        {},
    ),
}


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_head_computes_what_transformers_layer_does(tmp_path, shape):
    changes, more = SHAPES[shape]
    config = config_with(changes)
    found = tensors() | more
    target = tiny_runner(taps=(1, 2))
    head, embedding = load_head(write(tmp_path / "head", config, found), target.loaded)
    runner = head_drafter(
        head, target, name="head", num_slots=2, embedding=embedding, is_rounded=False
    ).runner
    tokens, features = np.arange(9, dtype=np.int32) * 5 % VOCABULARY, random(9, 2 * SIZE)
    runner.features[1, :9] = features
    proposals = runner.propose([Segment(1, 0, tokens, 1)], None, DRAFTS)
    table = target.loaded.model.get_input_embeddings().weight if embedding is None else embedding
    expected = (
        reference(found, config, features, table[torch.from_numpy(tokens).long()]).detach().numpy()
    )
    ids = (found["d2t"] + torch.arange(DRAFTS)).numpy()
    order = np.argsort(-expected)
    assert proposals.token_ids[0, 0] == ids[order[0]]
    place = {token: number for number, token in enumerate(ids)}
    np.testing.assert_allclose(
        proposals.chances[0], expected[[place[t] for t in proposals.token_ids[0]]], rtol=2e-3
    )


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("drafts", [DRAFTS, VOCABULARY])
@pytest.mark.parametrize("form", ["floats", "served", "int8"])
def test_a_head_without_lm_head_reads_the_targets_rows(tmp_path, drafts, form):
    """As speculators fills it: the verifier's lm_head by t2d. In whatever form the target's is
    served."""
    model = tiny_llama()
    found = tensors(drafts=drafts)
    config = CONFIG | {"draft_vocab_size": drafts}
    rows = model.lm_head.weight[found["d2t"] + torch.arange(drafts)].clone()
    if form == "served":
        model.lm_head = make_linear(model.lm_head.weight)
    if form == "int8":
        rows = rounded(model, rows)
    target = tiny_runner(model, taps=(1, 2))
    head, _ = load_head(
        write(tmp_path / "head", config, without(found, "lm_head.weight")), target.loaded
    )
    assert head.lm_head is None
    head_drafter(head, target, name="head", num_slots=2, is_rounded=False)
    read = head.lm_head(torch.eye(rows.shape[1])[None])[0].T
    torch.testing.assert_close(read, rows, rtol=0, atol=0)


def rounded(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    kind = gguf.GGMLQuantizationType.Q8_0
    blocks = torch.from_numpy(gguf.quantize(model.lm_head.weight.numpy(), kind))
    model.lm_head = QuantizedLinear([QuantizedWeight(blocks, kind)])
    return torch.from_numpy(gguf.dequantize(gguf.quantize(rows.numpy(), kind), kind))


def test_a_head_without_lm_head_of_another_size_is_refused(tmp_path):
    config = config_with({"target_hidden_size": SIZE, "hidden_size": 16})
    found = without(NARROW, "lm_head.weight") | {"embed_tokens.weight": random(VOCABULARY, 16)}
    with pytest.raises(
        ValueError, match=r"no output embedding \(lm_head\) and its hidden states are of size 16"
    ):
        read(tmp_path, config, found)
