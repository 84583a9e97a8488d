"""What an observation or a card is of, as far as vLLM's configuration says it."""

import os
import platform
from pathlib import Path

import vllm
from vllm.platforms import current_platform

from smartspec.observation.card import base_name
from smartspec.vllm_plugin.speculation import MODEL_FREE


def setup_of(scheduler) -> dict:
    """What an observation is of, JSON-able: names without folders."""
    config = scheduler.vllm_config
    model, parallel, speculation = config.model_config, config.parallel_config, config.speculative_config
    draft_model = getattr(speculation, "model", None)
    has_own_head = draft_model is None or str(draft_model) == str(model.model)
    table = getattr(speculation, "num_speculative_tokens_per_batch_size", None)
    return {
        "engine": "vllm",
        "version": vllm.__version__,
        "model": base_name(str(model.model)),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "method": str(speculation.method),
        "draft_model": None if has_own_head else base_name(str(draft_model)),
        "device": device_name(),
        "platform": "cpu" if current_platform.is_cpu() else "gpu",
        "parallel": [parallel.tensor_parallel_size, parallel.data_parallel_size],
        "has_passes": speculation.method not in MODEL_FREE,
        "longest": scheduler.num_spec_tokens,
        "most_drafts": _most_drafts(speculation),
        "table": table if table is None else [list(row) for row in table],
        "max_requests": scheduler.max_num_running_reqs,
        "max_batched_tokens": scheduler.max_num_scheduled_tokens,
    }


def _most_drafts(speculation) -> int | None:
    """Draft tokens that heads can make at all, where each makes one; None where a pass can follow another."""
    config = getattr(getattr(speculation, "draft_model_config", None), "hf_config", None)
    found = getattr(config, "num_lookahead_tokens", None)
    return found if isinstance(found, int) else None


def device_name() -> str:
    """Of what vLLM computes on; of a CPU with its number of cores."""
    name = current_platform.get_device_name()
    cpu_info = Path("/proc/cpuinfo")
    if name != "cpu" or not cpu_info.is_file():
        return name
    models = [line.split(":")[1].strip() for line in cpu_info.read_text().splitlines() if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()} x{len(os.sched_getaffinity(0))}"
