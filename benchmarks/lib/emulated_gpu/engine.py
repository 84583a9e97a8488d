"""vLLM's engine core around an emulated GPU: its configuration for a cell."""

import json
from pathlib import Path

from vllm.config import CUDAGraphMode
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.core import EngineCore
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from lib.emulated_gpu.acceptance import Acceptance, TextAcceptance
from lib.emulated_gpu.adaptive import AdaptiveVerification
from lib.emulated_gpu.cells import BESIDE, DYNAMIC_SD, OFF, Cell
from lib.emulated_gpu.clock import Clock
from lib.emulated_gpu.executor import GPU, executor_of
from lib.emulated_gpu.setups import BLOCK_SIZE, DRAFTERS, setup_of
from smartspec.sim.world.hardware import MODEL_SHAPES, ModelShape

MAX_SEQS = 256
MAX_MODEL_LEN = 8192
MAX_BATCHED_TOKENS = 8192  # vLLM's default on an H100


def make_engine(
    cell: Cell, acceptance: Acceptance, folder: Path, table: list | None
) -> tuple[EngineCore, GPU]:
    """An engine, which may be driven by step_fn, and its GPU. folder: of configurations and of what
    SmartSpec learns. table: of Dynamic SD."""
    setup, drafter = setup_of(cell.setup), None if cell.policy == OFF else cell.drafter
    in_scheduler = drafter is not None and DRAFTERS[drafter].in_scheduler
    if in_scheduler and (cell.is_async or not isinstance(acceptance, TextAcceptance)):
        raise ValueError(
            f"drafter {drafter} drafts from texts, without asynchronous scheduling: texts:FILE and "
            "sync"
        )
    ours = {}
    if cell.is_ours:
        section = {
            "policy": cell.policy.removesuffix(BESIDE),
            "cache": str(folder / "learned" / _file_name(cell)),
        }
        if in_scheduler:
            section |= {"drafter": "prompt-lookup", "datastore": "none"}
        ours = {
            "scheduler_cls": "smartspec.vllm_plugin.Scheduler",
            "additional_config": {"smartspec": section},
        }
    config = EngineArgs(
        model=_model_folder(folder, setup.model),
        speculative_config=_speculation(cell, folder, table),
        skip_tokenizer_init=True,
        max_num_seqs=MAX_SEQS,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_BATCHED_TOKENS,
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=setup.num_kv_blocks(drafter),
        enable_prefix_caching=False,
        enforce_eager=True,
        disable_log_stats=True,
        **ours,
    ).create_engine_config()
    # What vLLM's CPU build turns off, and its builds for GPUs have on.
    config.scheduler_config.async_scheduling = cell.is_async
    config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
    time, longest = setup.gpu_time(drafter), cell.longest
    verification = (
        AdaptiveVerification(time, MAX_SEQS, MAX_BATCHED_TOKENS, longest)
        if cell.is_adaptive
        else None
    )
    gpu = GPU(
        time,
        acceptance,
        Clock(setup.is_measured),
        _captured(config),
        has_drafter=drafter is not None and not in_scheduler,
        compares=in_scheduler,
        verification=verification,
    )
    executor = executor_of(gpu)
    if cell.is_adaptive:  # which vLLM's CPU build does not take as an option
        config.speculative_config.enable_adaptive_verification = True
        config.parallel_config.distributed_executor_backend = executor
    core = EngineCore(config, executor, log_stats=False)
    # The V2 runner is that of GPUs. vLLM wants Triton for it, which it only needs to compute.
    core.scheduler.use_v2_model_runner = True
    return core, gpu


def _speculation(cell: Cell, folder: Path, table: list | None) -> dict | None:
    """vLLM's speculative configuration. SmartSpec's lengths are all captured: a table names
    them."""
    if cell.policy == OFF:
        return None
    method = DRAFTERS[cell.drafter].method[cell.is_async]
    longest = cell.fixed_length or cell.longest if cell.is_fixed else cell.longest
    config = {"method": method, "num_speculative_tokens": longest}
    setup = setup_of(cell.setup)
    if cell.drafter == "ngram":
        config |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    elif DRAFTERS[cell.drafter].in_scheduler:
        config["model"] = "smartspec.vllm_plugin.proposer.NoDrafts"
    elif cell.drafter == "draft_model":
        config["model"] = _model_folder(folder, setup.small)
    else:
        architecture = "DFlashDraftModel" if cell.drafter == "dflash" else "LlamaForCausalLM"
        config["model"] = _model_folder(folder, setup.head, architecture)
    if cell.policy == "fixed:0":
        config["num_speculative_tokens_per_batch_size"] = [[1, MAX_SEQS, 0]]
    elif cell.policy == DYNAMIC_SD:
        config["num_speculative_tokens_per_batch_size"] = table
    elif cell.is_ours:
        lengths = [[size, size, longest - size + 1] for size in range(1, longest + 1)]
        config["num_speculative_tokens_per_batch_size"] = [*lengths, [longest + 1, MAX_SEQS, 0]]
    return config


def _file_name(cell: Cell) -> str:
    """Of what is learned in a cell: it begins with nothing."""
    return "-".join(str(value).replace("/", "_") for value in cell.scene)


def _captured(config) -> frozenset[int]:
    """Tokens per request with full graphs of decoding, as vLLM's V2 runner captures them
    (v1/worker/gpu)."""
    speculation = config.speculative_config
    if speculation is None:
        return frozenset({1})
    longest = speculation.num_speculative_tokens
    table = speculation.num_speculative_tokens_per_batch_size
    if not table:
        return frozenset({1 + longest})
    lookup = build_dynamic_sd_schedule_lookup(
        table, vllm_max_batch_size=MAX_SEQS, vllm_num_speculative_tokens=longest
    )
    return frozenset(1 + length for length in lookup[1:])


def _model_folder(folder: Path, name: str, architecture: str = "LlamaForCausalLM") -> str:
    """A folder with the configuration of a model of that shape: vLLM wants one, and reads no
    weights."""
    target = folder.absolute() / "models" / f"{name}-{architecture}"
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(
        json.dumps(_configuration(MODEL_SHAPES[name], architecture))
    )
    return str(target)


def _configuration(shape: ModelShape, architecture: str) -> dict:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": MAX_MODEL_LEN,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
