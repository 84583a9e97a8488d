"""The set-up of a server, as far as vLLM's configuration says it: model, device, drafter, and
lengths with graphs."""

import os
import re
from pathlib import PurePath

import vllm
from vllm.platforms import current_platform

from smartspec.core.processor import processor_name
from smartspec.vllm_plugin.compatibility import is_adaptive

# Methods whose drafts always have the configured length: a decision can save only their
# verification.
MODEL_FREE = ("ngram", "ngram_gpu", "suffix", "medusa", "custom_class")
RAGGED = ("ngram", "suffix", "custom_class")  # a draft is as long as what is found
AUTOMATIC = "goodput"  # the policy that gives way to tiers


def setup_key(vllm_config, tiers: tuple[int, ...] | None) -> dict:
    """Return all that step times depend on, by name. tiers: see captured_lengths."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    speculation = vllm_config.speculative_config
    draft_model = speculation.model
    return {
        "model": str(model.model),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "method": str(speculation.method),
        "draft_model": None if draft_model is None else str(draft_model),
        "longest": speculation.num_speculative_tokens,
        "parallel": [parallel.tensor_parallel_size, parallel.data_parallel_size],
        "eager": bool(model.enforce_eager),
        "tiers": None if tiers is None else list(tiers),
        "device": device_name(),
        "vllm": vllm.__version__,
    }


def describe_setup(scheduler) -> dict:
    """Return the set-up of an observation or a card, JSON-able: names without folders."""
    config = scheduler.vllm_config
    key, speculation = setup_key(config, None), config.speculative_config
    model, draft_model = key["model"], key["draft_model"]
    table = speculation.num_speculative_tokens_per_batch_size
    names = ("dtype", "quantization", "method", "longest", "parallel", "device")
    return {name: key[name] for name in names} | {
        "engine": "vllm",
        "version": vllm.__version__,
        "model": base_name(model),
        "draft_model": None if draft_model in (None, model) else base_name(draft_model),
        "platform": "cpu" if current_platform.is_cpu() else "gpu",
        "has_passes": speculation.method not in MODEL_FREE,
        "table": table and [list(row) for row in table],
        "max_requests": scheduler.max_num_running_reqs,
        "max_batched_tokens": scheduler.max_num_scheduled_tokens,
    }


def base_name(model: str) -> str:
    """Return a model's name without the folder that it lies in. Names of hubs (owner/name) stay."""
    is_path = model.startswith(("/", ".", "~")) or model.count("/") > 1
    return PurePath(model).name if is_path else model


def kv_memory(scheduler) -> dict | None:
    """Return the tokens whose KV fits into memory, and the drafter's share of that memory; None if
    unknown. A drafter's layers are named draft_model, or numbered on after the target's (0.32:
    model_executor/models)."""
    memory = scheduler.kv_cache_config
    if memory is None or not memory.kv_cache_groups:
        return None
    target = scheduler.vllm_config.model_config.get_total_num_hidden_layers()
    total = drafter = 0.0  # bytes of a token
    for group in memory.kv_cache_groups:
        specs = getattr(group.kv_cache_spec, "kv_cache_specs", {})  # of layers that differ
        for name in group.layer_names:
            spec = specs.get(name, group.kv_cache_spec)
            size = spec.page_size_bytes / spec.block_size
            total += size
            number = re.search(r"layers\.(\d+)", name)
            if name.startswith("draft_model.") or (number and int(number[1]) >= target):
                drafter += size
    blocks = memory.num_blocks // len(memory.kv_cache_groups)
    return {
        "tokens": blocks * min(group.kv_cache_spec.block_size for group in memory.kv_cache_groups),
        "drafter_share": round(drafter / max(total, 1.0), 4),
    }


def device_name() -> str:
    """Return the name of the device that vLLM computes on; of a CPU with its number of cores."""
    name = current_platform.get_device_name()
    if name != "cpu" or not hasattr(os, "sched_getaffinity"):
        return name
    return f"{processor_name()} x{len(os.sched_getaffinity(0))}"


def captured_lengths(vllm_config) -> tuple[int, ...] | None:
    """Return the tiers: draft lengths for which vLLM has captured full graphs of decoding, if all
    requests draft alike. None where lengths may differ without loss: there are no such graphs, or
    drafts have different lengths in any case.

    The V1 runner has graphs of the configured length alone, and none beside a batch-size table. The
    V2 runner captures them for all lengths in the table, and with adaptive verification for any mix
    (vLLM 0.33: v1/worker/gpu/cudagraph_utils.py, config/vllm.py).
    """
    speculation = vllm_config.speculative_config
    mode = vllm_config.compilation_config.cudagraph_mode
    if mode is None or not mode.has_full_cudagraphs() or is_adaptive(vllm_config):
        return None
    is_v2 = vllm_config.use_v2_model_runner
    # the V2 runner drafts the same number of tokens for all requests by n-grams, too
    if speculation.method in RAGGED and not (is_v2 and speculation.method == "ngram"):
        return None
    longest = speculation.num_speculative_tokens
    table = speculation.num_speculative_tokens_per_batch_size
    if not table:
        return (longest,)
    return tuple(sorted({min(length, longest) for *_, length in table if length})) or None


def policy_name(policy: str, lengths: tuple[int, ...] | None) -> str:
    """Return the policy of the settings, or its form for tiers (see captured_lengths)."""
    if policy != AUTOMATIC or lengths is None:
        return policy
    return f"uniform:{','.join(map(str, lengths))}"
