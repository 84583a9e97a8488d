"""Models made here: shapes without weights, and small ones whose greedy text repeats itself."""

import json
import shutil
from pathlib import Path

VOCABULARY = 512  # of the small models
SEED = 0

LLAMA_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
}  # fmt: skip
EAGLE3_8B = LLAMA_8B | {"num_hidden_layers": 1, "draft_vocab_size": 32000}
# A draft model, and a block drafter as DFlash's for targets of this size: five layers, three layers
# of the target.
LLAMA_1B = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
}  # fmt: skip
DFLASH_8B = LLAMA_8B | {
    "model_type": "qwen3", "num_hidden_layers": 5, "block_size": 8, "attention_bias": False,
    "dflash_config": {"mask_token_id": 0, "target_layer_ids": [1, 15, 29]},
}  # fmt: skip
CIRCLE = 32  # tokens
# Of a target whose tokens are compared. EAGLE-3 reads the states of three layers: with fewer than 8
# some are the same.
SMALL = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": VOCABULARY,
}  # fmt: skip
SMOLLM2_135M = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": VOCABULARY,
}  # fmt: skip


def write_config(
    folder: Path, shape: dict, architecture: str = "LlamaForCausalLM", dtype: str = "bfloat16"
) -> str:
    """The folder of a model without weights, as vLLM takes it."""
    common = {
        "model_type": "llama", "architectures": [architecture], "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": dtype,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(common | shape))
    return str(folder)


def repeating_model(folder: Path, shape: dict, strength: float = 0.05) -> str:
    """A random Llama in 32 bits whose next token depends mostly on the current one, so that its
    greedy text goes in circles; by `strength` it depends on what stands before, too. SEED is one
    with which no two tokens are nearly equally likely: other kernels round differently."""
    import torch
    from safetensors.torch import save_file

    rng = torch.Generator().manual_seed(SEED)

    def random(*size: int, scale: float = 1.0):
        return torch.randn(*size, generator=rng) * scale

    hidden, middle, heads = (
        shape["hidden_size"],
        shape["intermediate_size"],
        shape["num_attention_heads"],
    )
    query, key = heads * shape["head_dim"], shape["num_key_value_heads"] * shape["head_dim"]
    weights = {
        "model.embed_tokens.weight": random(VOCABULARY, hidden),
        "lm_head.weight": random(VOCABULARY, hidden),
        "model.norm.weight": torch.ones(hidden),
    }
    for index in range(shape["num_hidden_layers"]):
        name, scale = f"model.layers.{index}.", hidden**-0.5
        weights |= {
            name + "input_layernorm.weight": torch.ones(hidden),
            name + "post_attention_layernorm.weight": torch.ones(hidden),
            name + "self_attn.q_proj.weight": random(query, hidden, scale=scale),
            name + "self_attn.k_proj.weight": random(key, hidden, scale=scale),
            name + "self_attn.v_proj.weight": random(key, hidden, scale=scale),
            name + "self_attn.o_proj.weight": random(
                hidden, query, scale=8 * strength * query**-0.5
            ),
            name + "mlp.gate_proj.weight": random(middle, hidden, scale=scale),
            name + "mlp.up_proj.weight": random(middle, hidden, scale=scale),
            name + "mlp.down_proj.weight": random(
                hidden, middle, scale=4 * strength * middle**-0.5
            ),
        }
    path = write_config(folder, shape, dtype="float32")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return path


def repeating_head(folder: Path, target: Path) -> str:
    """An EAGLE-3 head for it that drafts what would follow if the target had no layers.

    Its attention finds equal tokens, and passes their embedding on; all else is zero. So its output
    is that of lm_head(norm(embedding of the current token)), which is often the target's choice,
    and not always."""
    import torch
    from safetensors.torch import load_file, save_file

    own = load_file(target / "model.safetensors")
    shape = {name: SMALL[name] for name in SMALL} | {
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCABULARY,
    }
    hidden, middle = shape["hidden_size"], shape["intermediate_size"]
    # of [embedding, state]
    passed_on = torch.cat([torch.eye(hidden), torch.zeros(hidden, hidden)], dim=1)
    weights = {
        "embed_tokens.weight": own["model.embed_tokens.weight"],
        "lm_head.weight": own["lm_head.weight"],
        "norm.weight": torch.ones(hidden),
        "fc.weight": torch.zeros(hidden, 3 * hidden),
        "midlayer.input_layernorm.weight": torch.ones(hidden),
        "midlayer.hidden_norm.weight": torch.ones(hidden),
        "midlayer.post_attention_layernorm.weight": torch.ones(hidden),
        # Of heads with 64 numbers, an equal token scores 32, another one 0 with a deviation of 4.
        "midlayer.self_attn.q_proj.weight": 2 * passed_on,
        "midlayer.self_attn.k_proj.weight": 2 * passed_on,
        "midlayer.self_attn.v_proj.weight": passed_on,
        "midlayer.self_attn.o_proj.weight": torch.eye(hidden),
        "midlayer.mlp.gate_proj.weight": torch.zeros(middle, hidden),
        "midlayer.mlp.up_proj.weight": torch.zeros(middle, hidden),
        "midlayer.mlp.down_proj.weight": torch.zeros(hidden, middle),
    }
    path = write_config(folder, shape, "LlamaForCausalLMEagle3", dtype="float32")
    save_file(
        {name: tensor.contiguous() for name, tensor in weights.items()},
        folder / "model.safetensors",
    )
    return path


def copy_by_cycles(model) -> None:
    """Make a Llama's next token follow from the last one alone, in circles of so many tokens. Its
    layers add nothing and take the time that they take."""
    import torch

    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        embedding.normal_()
        model.model.norm.weight.fill_(1.0)
        tokens = torch.arange(len(embedding), device=embedding.device)
        after = torch.minimum(tokens // CIRCLE * CIRCLE + (tokens + 1) % CIRCLE, tokens[-1])
        head[after] = embedding[tokens]


def add_tokenizer(folder: Path) -> None:
    """A word for each token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="w1", eos_token="w2", unk_token="w0"
    )
    tokenizer.save_pretrained(folder)


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder
