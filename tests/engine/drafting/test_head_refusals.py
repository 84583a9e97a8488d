"""EAGLE-3 checkpoints that contradict themselves or need what is not supported: refused by the true
reason."""

import pytest
import torch
from eagle3_files import (
    CONFIG,
    DRAFTS,
    SIZE,
    WIDE,
    config_with,
    random,
    read,
    tensors,
)
from tiny_models import VOCABULARY


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            {"layers.1.mlp.up_proj.weight": random(WIDE, SIZE)},
            "holds several layers .*, one is supported",
        ),
        (
            {"midlayer.mlp.up_proj.weight": random(WIDE, SIZE)},
            r"'layers.0.mlp.up_proj.weight' twice",
        ),
        (
            {"fc.weight_scale": random(1)},
            "weights of a kind that is not supported, 'fc.weight_scale'",
        ),
        (
            {"fc.weight": random(SIZE, 64).to(torch.int8)},
            "fc.weight is torch.int8; heads with quantized weights",
        ),
        (
            {"fc.weight": torch.full((SIZE, 64), torch.nan)},
            "fc.weight holds numbers that are not finite",
        ),
        ({"d2t": random(DRAFTS)}, "d2t is torch.float32, it must hold integers"),
        ({"d2t": torch.full((DRAFTS,), 2**62)}, "index map d2t names token 4611686018427387904"),
        ({"d2t": torch.full((DRAFTS,), -DRAFTS)}, "index map d2t names token -40"),
        (
            {"embed_tokens.weight": random(VOCABULARY, 2048)},
            r"embed_tokens.weight is \(61, 2048\), its config says",
        ),
        (
            {"embed_tokens.weight": random(1, SIZE)},
            r"embed_tokens.weight is \(1, 32\), its config says \(61, 32\)",
        ),
    ],
)
def test_weights_that_lie_are_refused_by_the_true_reason(tmp_path, found, message):
    with pytest.raises((ValueError, OSError), match=message):
        read(tmp_path, CONFIG, tensors() | found)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"draft_vocab_size": 10**12}, "drafts from 1000000000000 tokens, the target has 61"),
        ({"draft_vocab_size": -1}, "drafts from -1 tokens, the target has 61"),
        ({"target_hidden_size": 0}, "reads features of size 0"),
        ({"vocab_size": 77}, "vocabulary of 77 tokens, the target has 61"),
        ({"speculators_model_type": "dflash"}, "'dflash': use one of type eagle3"),
        ({"norm_before_fc": "false"}, "norm_before_fc is 'false', it must be true or false"),
        ({"fc_norm": True}, r"lacks 2 weights, 'fc_norm.0.weight'"),
        ({"logit_scale": 0.5}, "logit_scale is 0.5, only 1 is supported"),
        (
            {"eagle_config": {"use_last_layernorm": False}},
            "use_last_layernorm is False, only True is supported",
        ),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu' is supported"),
        ({"model_type": "gemma"}, "its layer is of type 'gemma'"),
        ({"sliding_window": 64}, r"attends in a window \(64 tokens\), which is not supported"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 64}, "attends in a window"),
        (
            {
                "hidden_size": 8,
                "num_attention_heads": 1,
                "num_key_value_heads": 1,
                "target_hidden_size": 32,
            },
            "it has no embedding",
        ),
        ({"num_hidden_layers": 2}, "it has 2 layers, one is supported"),
        ({"num_attention_heads": 0}, "is of no layer"),
        (
            {"num_attention_heads": -4},
            r"is of no layer \(num_attention_heads is -4, it must be a number from 1",
        ),
        (
            {"num_key_value_heads": 3},
            "num_attention_heads 4 is no multiple of num_key_value_heads 3",
        ),
        ({"head_dim": 7}, "is of no layer .*even"),
        ({"head_dim": 10}, r"q_proj.weight is \(32, 64\), its config says \(40, 64\)"),
        (
            {"intermediate_size": 2**40},
            "intermediate_size is 1099511627776, it must be a number from 1 to",
        ),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, only 1 is supported"),
        (
            {
                "rope_parameters": {
                    "rope_type": "linear",
                    "factor": 2.0,
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 0.5,
                }
            },
            "partial_rotary_factor is 0.5, only 1 is supported",
        ),
        (
            {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}},
            "is of no layer .*spiral",
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0.0}}, "give no finite angles"),
    ],
)
def test_a_config_that_lies_is_refused_by_the_true_reason(tmp_path, config, message):
    with pytest.raises((ValueError, OSError), match=message):
        read(tmp_path, config_with(config), tensors())


@pytest.mark.parametrize(
    "window", [{"sliding_window": 64, "use_sliding_window": False}, {"sliding_window": None}]
)
def test_a_window_that_nothing_uses_is_none(tmp_path, window):
    read(tmp_path, config_with(window), tensors())
