"""vLLM's engine core in this process."""

import gc
import sys
import time

from lib.gpu.plan import MAX_SEQS, Plan
from lib.gpu.results import Results

OPTIONS = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "max_num_seqs": MAX_SEQS,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": False,
    "gpu_memory_utilization": 0.85,
    "kv_cache_memory_bytes": 24 << 30,
    "disable_log_stats": True,
}
# The plugin's own executor: beside adaptive verification it tells the scheduler what was verified.
EXECUTOR = "smartspec.vllm_plugin.executor.Executor"
LOOKUP = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}


def make_core(
    results: Results, plan: Plan, model: str, sizes: list[int], speculation: dict | None = None,
    policy: str | None = None, **more,
):  # fmt: skip
    """sizes: tokens of the graphs. policy: of the plugin, None for vLLM alone."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor

    began = time.perf_counter()
    graphs = {"mode": 0, "cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": sizes}
    options = OPTIONS | {"compilation_config": graphs, "speculative_config": speculation}
    options["max_model_len"] = plan.model_len
    if policy is not None:
        section = {"policy": policy, "cache": str(plan.folder / "learned"), **plan.settings}
        options |= {
            "scheduler_cls": "smartspec.vllm_plugin.Scheduler",
            "additional_config": {"smartspec": section},
        }
        if speculation and speculation.get("enable_adaptive_verification"):
            options["distributed_executor_backend"] = EXECUTOR
    if plan.emulates:
        options["num_gpu_blocks_override"] = 20_000
    config = EngineArgs(model=model, **(options | more)).create_engine_config()
    executor = emulated_executor(config) if plan.emulates else Executor.get_class(config)
    core = EngineCore(config, executor, log_stats=False)
    gc.collect()
    gc.freeze()
    results.add(
        engine=speculation and speculation["method"],
        start_s=time.perf_counter() - began,
        v2=bool(config.use_v2_model_runner),
        asynchronous=bool(config.scheduler_config.async_scheduling),
        graphs=str(config.compilation_config.cudagraph_mode),
        scheduler=" ".join(kind.__name__ for kind in type(core.scheduler).__mro__[:2]),
        decides=getattr(core.scheduler, "speculation", None) is not None,
        attention=attention_of(core),
    )
    return core


def runner_of(core):
    """vLLM's model runner, None where none computes."""
    worker = getattr(getattr(core.model_executor, "driver_worker", None), "worker", None)
    return getattr(worker, "model_runner", None)


def attention_of(core) -> list[str]:
    groups = getattr(runner_of(core), "attn_groups", None) or []
    return sorted({group.backend.get_name() for each in groups for group in each})


def emulated_executor(config):
    """The stand-in for a GPU, for a trial of everything else."""
    from lib.emulated_gpu.acceptance import StatedAcceptance
    from lib.emulated_gpu.adaptive import AdaptiveVerification
    from lib.emulated_gpu.clock import Clock
    from lib.emulated_gpu.executor import GPU, executor_of
    from lib.emulated_gpu.setups import setup_of

    speculation = config.speculative_config
    seconds = setup_of("8b-h100").gpu_time(None if speculation is None else "eagle3")
    gpu = GPU(
        seconds,
        StatedAcceptance("0.5,0.85", 5, 0),
        Clock(),
        frozenset({1, 2, 4, 6}),
        speculation is not None,
    )
    if getattr(speculation, "enable_adaptive_verification", False):
        gpu.verification = AdaptiveVerification(
            seconds, MAX_SEQS, 8192, speculation.num_speculative_tokens
        )
    gpu.began = time.perf_counter()
    return executor_of(gpu)


def imported() -> dict:
    """Imports what engines need, and says what that is. The GPU stays unused: a forked process
    could not share it."""
    import torch
    import triton
    import vllm
    import vllm.model_executor.models.llama
    import vllm.model_executor.models.llama_eagle3
    import vllm.v1.attention.backends.flash_attn
    import vllm.v1.attention.backends.triton_attn
    import vllm.v1.engine.core
    import vllm.v1.worker.gpu.model_runner
    import vllm.v1.worker.gpu.spec_decode.eagle.speculator
    import vllm.v1.worker.gpu.spec_decode.ngram.speculator
    import vllm.v1.worker.gpu.warmup
    import vllm.v1.worker.gpu_worker
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform

    # vLLM looks at a model's class in a process of its own, which imports everything again.
    registry._run_in_subprocess = lambda work: work()
    return {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": sys.version.split()[0],
        "device": current_platform.get_device_name(),
        "used": torch.cuda.is_initialized(),
    }
