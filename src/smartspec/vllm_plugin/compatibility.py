"""Checks at the start of vLLM. Each problem is a reason to keep vLLM's own scheduler, None without
one."""

import inspect
import os
from collections.abc import Mapping

from smartspec.vllm_plugin.tested_versions import VERSIONS, numbers

UNTESTED = "SMARTSPEC_UNTESTED"  # the environment variable that allows a newer version
# Members of vLLM's scheduler that are overridden or called, with the parameters that are passed on.
METHODS = {
    "schedule": ("self",),
    "_update_after_schedule": ("self", "scheduler_output"),
    "get_grammar_bitmask": ("self", "scheduler_output"),
    "update_from_output": ("self", "scheduler_output", "model_runner_output"),
    "update_draft_token_ids": ("self", "draft_token_ids"),
    "reset_prefix_cache": ("self",),
    "has_unfinished_requests": ("self",),
    "get_request_counts": ("self",),
    "get_kv_cache_usage": ("self",),
    "shutdown": ("self",),
}
# Members of adaptive verification's manager and of the V2 model runner, in vLLM's workers, with all
# their parameters.
MANAGER = {
    "reallocate_drafts": ("req_ids", "idx_mapping"),
    "set_cost_curves": ("draft_curve", "verify_curve"),
    "get_num_tokens": ("num_tokens_per_req", "draft_tokens"),
}
RUNNER = {"sample_tokens": ("grammar_output",)}
CAPACITY = "_batch_draft_capacity"  # of the manager
ATTRIBUTES = (
    "running", "waiting", "requests", "num_spec_tokens", "dynamic_sd_lookup",
    "max_num_scheduled_tokens", "max_num_running_reqs", "max_model_len", "cache_config",
    "vllm_config", "use_v2_model_runner", "kv_cache_config",
)  # fmt: skip


# the drafter of vLLM's workers that makes none
NO_DRAFTS = "smartspec.vllm_plugin.proposer.NoDrafts"
EXECUTOR = "smartspec.vllm_plugin.executor.Executor"


def has_scheduler_drafts(vllm_config) -> bool:
    """True if drafters of ours draft in the scheduler: the drafter of vLLM's workers makes no
    drafts."""
    speculation = vllm_config.speculative_config
    return speculation is not None and (speculation.method, speculation.model) == (
        "custom_class",
        NO_DRAFTS,
    )


def is_adaptive(vllm_config) -> bool:
    """True if vLLM's workers choose the draft tokens that they verify (adaptive verification)."""
    return vllm_config.speculative_config.enable_adaptive_verification


def is_newer(version: str) -> bool:
    """True if this version of vLLM is newer than all tested ones."""
    release = numbers(version)
    return release is not None and release > VERSIONS[1]


def version_problem(version: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The problem of a version of vLLM. version: vllm.__version__ ("0.32.0+cpu"). One that is newer
    than the tested ones is tried where the environment says so."""
    release = numbers(version)
    least, newest = (".".join(map(str, bound)) for bound in VERSIONS)
    if is_newer(version):
        is_tried = environment.get(UNTESTED, "") not in ("", "0")
        return (
            None
            if is_tried
            else f"vLLM {version} is untested (tested: {least} to {newest}; {UNTESTED}=1 tries it)"
        )
    if release and release >= VERSIONS[0]:
        return None
    return f"vLLM {version} is not supported (supported: {least} and later)"


def signature_problem(scheduler: type) -> str | None:
    """The first method of vLLM that is missing or has other parameters. scheduler: vLLM's own
    class."""
    for name, expected in METHODS.items():
        method = getattr(scheduler, name, None)
        if method is None:
            return f"{scheduler.__name__}.{name} does not exist in this version of vLLM"
        parameters = tuple(inspect.signature(method).parameters)
        if parameters[: len(expected)] != expected:
            return (
                f"{scheduler.__name__}.{name} takes {parameters} in this version of vLLM, expected "
                f"{expected}"
            )
    return None


def attribute_problem(scheduler: object) -> str | None:
    """The attributes that a scheduler object lacks."""
    missing = [name for name in ATTRIBUTES if not hasattr(scheduler, name)]
    return (
        f"{type(scheduler).__name__} has no {', '.join(missing)} in this version of vLLM"
        if missing
        else None
    )


def slowness(method: str, is_cpu: bool, environment: Mapping[str, str]) -> str | None:
    """Return advice where a setting makes vLLM slower than necessary, else None. In a process that
    is bound to cores, the import of numba's parallel code sets OpenMP's number of threads to one.
    vLLM's kernels use these threads."""
    if (
        method == "ngram"
        and is_cpu
        and not {"NUMBA_THREADING_LAYER", "NUMBA_NUM_THREADS"} & environment.keys()
    ):
        return (
            "vLLM's ngram drafter leaves its kernels one thread on CPUs: set "
            "NUMBA_THREADING_LAYER=workqueue"
        )
    return None


def setup_problem(vllm_config) -> str | None:
    """The problem of a set-up in which draft lengths cannot be decided. vllm_config: vLLM's
    configuration."""
    speculation, parallel = vllm_config.speculative_config, vllm_config.parallel_config
    if speculation is None:
        return "no speculation is configured (--speculative-config)"
    if speculation.method == "extract_hidden_states":
        return "method extract_hidden_states drafts nothing"
    executor = parallel.distributed_executor_backend
    if (
        is_adaptive(vllm_config)
        and executor != EXECUTOR
        and not getattr(executor, "has_admitted_counts", False)
    ):
        return (
            f"vLLM's adaptive verification needs --distributed-executor-backend {EXECUTOR}: "
            "without it the scheduler is not told what was verified"
        )
    if parallel.pipeline_parallel_size > 1:
        return f"pipeline parallel is {parallel.pipeline_parallel_size}, which has not been tried"
    return None


def has_fixed_drafts(vllm_config) -> bool:
    """True if each pass drafts the configured length. Drafters of a block do, as depth costs
    nothing there. So do ranks that make each pass together, with data parallelism of a model with
    experts: else they would wait for ever."""
    is_block = vllm_config.speculative_config.parallel_drafting
    return is_block or (
        vllm_config.parallel_config.data_parallel_size > 1 and vllm_config.model_config.is_moe
    )
