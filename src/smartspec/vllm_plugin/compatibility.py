"""Checks at the start of vLLM. Each problem is a reason to keep vLLM's own scheduler, None without
one."""

import inspect
import os
from collections.abc import Mapping

from smartspec.vllm_plugin.needs import Need, need_of
from smartspec.vllm_plugin.tested_versions import NEWEST, OLDEST, VERSIONS, numbers

UNTESTED = "SMARTSPEC_UNTESTED"  # the environment variable that allows a newer version
STOCK_SCHEDULER = need_of("v1/core/sched/scheduler.py")
# names that options of vLLM have as values
SCHEDULER = "smartspec.vllm_plugin.Scheduler"
EXECUTOR = "smartspec.vllm_plugin.executor.Executor"
# the drafter of vLLM's workers that makes none
NO_DRAFTS = "smartspec.vllm_plugin.proposer.NoDrafts"


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
    if release is None or release < VERSIONS[0]:
        return f"vLLM {version} is not supported (supported: {OLDEST} and later)"
    if is_newer(version) and environment.get(UNTESTED, "") in ("", "0"):
        return f"vLLM {version} is untested (tested: {OLDEST} to {NEWEST}; {UNTESTED}=1 tries it)"
    return None


def signature_problem(owner: type, need: Need = STOCK_SCHEDULER) -> str | None:
    """The first method of one of vLLM's classes that is missing or has other parameters."""
    for name, expected in need.methods.items():
        method = getattr(owner, name, None)
        if method is None:
            return f"{owner.__name__}.{name} does not exist in this version of vLLM"
        parameters = [*inspect.signature(method).parameters]
        if parameters[: len(expected)] != expected:
            return (
                f"{owner.__name__}.{name} takes {', '.join(parameters)} in this version of vLLM; "
                f"expected {', '.join(expected)}"
            )
    return None


def attribute_problem(owner: object, need: Need = STOCK_SCHEDULER) -> str | None:
    """The attributes that an object of such a class lacks."""
    missing = [name for name in need.attributes if not hasattr(owner, name)]
    if missing:
        return f"{type(owner).__name__} has no {', '.join(missing)} in this version of vLLM"
    return None


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
