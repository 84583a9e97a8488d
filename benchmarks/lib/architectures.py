"""Which architectures are served rightly: tiny models with random weights against transformers' own
pass.

Each case runs in a process of its own; one that hangs or crashes is a row, too.
"""

import logging
import multiprocessing
import os
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from lib.models_page import write
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.models import load
from smartspec.engine.models.checkpoint import UnsupportedModelError
from smartspec.engine.models.fusion import FusedAttention, FusedMLP, FusedRMSNorm
from smartspec.engine.models.load_check import rounding_tolerance
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner

TIME_LIMIT = 120.0  # seconds of one case
MAX_PARAMETERS = 50_000_000
VOCABULARY = 256
TEXT_LENGTHS = (90, 70)
ORIGINAL_LENGTH = 64  # of LongRoPE
SIZES = {
    "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "max_position_embeddings": 512, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "sliding_window": 24,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "vocab_size_per_layer_input": VOCABULARY, "rotary_dim": 16,
    "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "n_inner": 128, "n_ctx": 512,
    "d_model": 64, "n_heads": 4, "n_layers": 3, "ffn_dim": 128, "word_embed_proj_dim": 64,
    "decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_dim": 128, "encoder_layers": 1,
}  # fmt: skip
# Of whatever a composed model has besides its text.
OTHER_SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_global_layers": 1,
    "depth": 1, "num_attention_heads": 2, "num_heads": 2, "head_dim": 16, "embed_dim": 32,
    "out_hidden_size": 64, "vocab_size": VOCABULARY, "image_size": 32, "patch_size": 16,
}  # fmt: skip
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
          "qk_rope_head_dim": 8, "v_head_dim": 16, "qk_head_dim": 24, "head_dim": 8}  # fmt: skip
LATENT_TYPES = (
    "axk1",
    "axk2",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe_lite",
    "longcat_flash",
    "minicpm3",
    "youtu",
)
# What some configurations want besides; None takes a setting away.
EXTRA = {
    **{name: LATENT for name in LATENT_TYPES},
    **{
        name: {**LATENT, "index_head_dim": 16, "index_n_heads": 2}
        for name in ("deepseek_v32", "glm_moe_dsa")
    },
    "zaya": {"num_experts_per_tok": 1},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 48], "axial_pos_shape": [16, 32]},
    "falcon": {"head_dim": None, "num_key_value_heads": None},
    "gpt_neo": {
        "num_layers": 3,
        "attention_types": [[["global", "local", "global"], 1]],
        "window_size": 24,
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"moe_num_experts": 4, "moe_top_k": 2, "ffn_hidden_size": 64},
    },
    "lfm2_moe": {"layer_types": ["full_attention"] * 3, "num_dense_layers": 1},
    "mamba2": {"num_heads": 8, "expand": 2, "n_groups": 1},
    "cohere_compass_text": {"layer_types": ["full_attention"] * 3},
    "xlnet": {"max_position_embeddings": None},
    "prophetnet": {"num_hidden_layers": None, "num_encoder_layers": 1, "num_decoder_layers": 3},
}
VARIANTS = {
    "bfloat16": {},
    "window": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "use_sliding_window": True,
    },
    "LongRoPE": {
        "original_max_position_embeddings": ORIGINAL_LENGTH,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 5 + [3.0] * 3,
            "original_max_position_embeddings": ORIGINAL_LENGTH,
            "partial_rotary_factor": 1.0,
        },
        "partial_rotary_factor": 1.0,
        "rotary_pct": 1.0,
    },
    "partial": {
        "partial_rotary_factor": 0.5,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    },
}


@dataclass(frozen=True)
class Case:
    """variant: "" for the plain model, or a key of VARIANTS."""

    model_type: str
    variant: str = ""

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.variant == "bfloat16" else "float32"


class NoSuchModelError(Exception):
    """The settings here make no tiny model of this kind."""


def check(names: list[str], output: Path) -> None:
    """Try these (none: all) and their variants, and write the page."""
    _prepare()
    names, rows = names or list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), {}
    for number, name in enumerate(names, 1):
        row = rows[name] = {"plain": run_apart(Case(name))}
        if row["plain"][0] in ("fused", "right"):
            row |= {variant: run_apart(Case(name, variant)) for variant in VARIANTS}
        cells = "; ".join(f"{variant} {' '.join(cell)}".strip() for variant, cell in row.items())
        print(f"[{number}/{len(names)}] {name}: {cells}", flush=True)
    write(output, transformers=transformers.__version__, architectures=dict(sorted(rows.items())))


def _prepare() -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)  # a process with threads cannot fork


def run_apart(case: Case) -> tuple[str, str]:
    """Result and detail of a case, run in a process of its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=send_result, args=(case, theirs))
    process.start()
    theirs.close()
    deadline = time.monotonic() + TIME_LIMIT
    try:
        result = (
            ours.recv()
            if ours.poll(max(0.0, deadline - time.monotonic()))
            else ("RUNCRASH", "took too long")
        )
    except EOFError:
        result = "RUNCRASH", "the process died"
    process.kill()
    process.join()
    return result


def send_result(case: Case, connection: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with tempfile.TemporaryDirectory() as folder:
        try:
            connection.send(run(case, Path(folder)))
        except Exception:
            connection.send(("RUNCRASH", traceback.format_exc().splitlines()[-1]))


def run(case: Case, folder: Path) -> tuple[str, str]:
    dtype = getattr(torch, case.dtype)
    random = np.random.default_rng(0)
    texts = [random.integers(3, VOCABULARY, length).astype(np.int32) for length in TEXT_LENGTHS]
    try:
        make(case, folder)
        stock = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=dtype
        ).eval()
        expected = [
            reference(stock, text[:ORIGINAL_LENGTH] if case.variant == "LongRoPE" else text)
            for text in texts
        ]
    except Exception as error:
        return "not tried", f"{type(error).__name__}: {error}"
    try:
        loaded = load.load_model(str(folder), dtype=case.dtype, device="cpu")
    except UnsupportedModelError as error:
        text = str(error).replace(repr(str(folder)), "it").replace(": use another model", "")
        return "refused", text.partition("not supported: ")[2] or text
    except Exception as error:
        return "LOADCRASH", f"{type(error).__name__}: {error}"
    errors = ragged_errors(loaded, texts, expected)
    # In a coarse dtype rounding sends single tokens to other experts.
    error = errors.max() if dtype == torch.float32 else errors.median()
    if not error <= rounding_tolerance(dtype):
        return "WRONG", f"logits differ by {error:.1e}"
    fused = any(
        isinstance(module, FusedAttention | FusedMLP | FusedRMSNorm)
        for module in loaded.model.modules()
    )
    limit = (
        f"up to {loaded.max_model_len} tokens"
        if loaded.max_model_len < SIZES["max_position_embeddings"]
        else ""
    )
    return "fused" if fused else "right", limit


def make(case: Case, folder: Path) -> None:
    """Save a tiny model with weights large enough for attention to show. Raises
    NoSuchModelError."""
    changes = VARIANTS.get(case.variant, {})
    settings = {**SIZES, **EXTRA.get(case.model_type, {}), **changes}
    for part in CONFIG_MAPPING[case.model_type].sub_configs:
        settings.setdefault(
            part, {**SIZES, **changes} if "text" in part or "decoder" in part else OTHER_SIZES
        )
    config = CONFIG_MAPPING[case.model_type](
        **{name: value for name, value in settings.items() if value is not None}
    )
    if not all(hasattr(CONFIG_MAPPING[case.model_type](), name) for name in known_by(case.variant)):
        raise NoSuchModelError("its config knows no such setting")
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > MAX_PARAMETERS:
        raise NoSuchModelError(
            f"composed of several models, {size / 1e6:.0f} M parameters at least"
        )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 1.0 if "embed" in name or "wte" in name else 1.5 / parameter.shape[-1] ** 0.5
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * scale if parameter.dim() > 1 else parameter + 0.2 * noise)
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(folder)
    words = models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t2").save_pretrained(folder)


def known_by(variant: str) -> tuple[str, ...]:
    """Attributes a config must have for the variant to mean anything."""
    return {
        "window": ("layer_types",),
        "LongRoPE": ("rope_parameters",),
        "partial": ("rope_parameters",),
    }.get(variant, ())


@torch.inference_mode()
def reference(stock: torch.nn.Module, text: np.ndarray) -> torch.Tensor:
    return (
        stock(input_ids=torch.from_numpy(text.astype(np.int64))[None], use_cache=False)
        .logits[0]
        .float()
    )


def ragged_errors(
    loaded: LoadedModel, texts: list[np.ndarray], expected: list[torch.Tensor]
) -> torch.Tensor:
    """Largest difference of every token's logits, over the largest logit, float [tokens]."""
    sizes = [len(rows) for rows in expected]
    first, second = (text[:size] for text, size in zip(texts, sizes, strict=True))
    runner = ModelRunner(loaded, num_slots=3, max_len=min(256, loaded.max_model_len))
    wrong = texts[1][10:15]
    errors = []

    def step(*parts: tuple[int, int, int, int]) -> None:
        """(text, start, end, number of wrong drafts) each."""
        segments = []
        for index, start, end, num_wrong in parts:
            tokens = np.concatenate([(first, second)[index][start:end], wrong[:num_wrong]])
            segments.append(Segment(2 - index, start, tokens, len(tokens)))
        rows = runner.forward(segments).float().split([segment.num_tokens for segment in segments])
        for logits, (index, start, end, _) in zip(rows, parts, strict=True):
            difference = (logits[: end - start] - expected[index][start:end]).abs().amax(dim=-1)
            errors.append(torch.nan_to_num(difference / expected[index].abs().max(), nan=torch.inf))

    step((0, 0, 30, 0))
    step((0, 30, 45, 0), (1, 0, 33, 0))
    step((0, 45, 46, 5), (1, 33, 34, 0))  # wrong drafts, rolled back
    step((0, 46, 50, 0), (1, 34, 37, 5))
    for position in range(50, 60):
        step((0, position, position + 1, 0), (1, position - 13, position - 12, 0))
    step((1, 47, sizes[1], 0), (0, 60, sizes[0], 0))
    return torch.cat(errors)
