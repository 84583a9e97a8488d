"""SGLang's entry point: puts our policy in the place where SGLang hands over its own, if it is to
and fits."""

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from smartspec.sglang_plugin.ranks import Agreed

ACTIVATION, UNTESTED = "SMARTSPEC_SGLANG", "SMARTSPEC_UNTESTED"
TESTED = ("0.5.23",)
CONTROLLER_INIT = "sglang.srt.speculative.adaptive_runtime_state.AdaptiveController.__init__"
PARAMETERS = ("self", "worker", "policy")
PREFILL = (
    "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
    ".process_batch_result_prefill"
)
# Methods of SGLang's policy with all their parameters (AdaptiveSpecPolicy).
METHODS = {
    "set_cuda_graph_bs": ("cuda_graph_bs",),
    "get_steps_for_batch": ("batch_size",),
    "on_verify_complete": ("num_correct_drafts_per_req", "batch_size"),
    "cuda_graph_bs_for_step": ("step",),
}
logger = logging.getLogger("sglang.smartspec")


def register() -> None:
    """Called by SGLang in each of its processes. Nothing happens unless SMARTSPEC_SGLANG=on."""
    value = os.environ.get(ACTIVATION, "off")
    if value not in ("on", "off"):
        logger.warning("%s is %r: use on or off. SGLang's own policy decides", ACTIVATION, value)
    if value != "on":
        return
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if problem := version_problem(sglang.__version__, os.environ):
        logger.warning("%s. SGLang's own policy decides", problem)
        return
    HookRegistry.register(CONTROLLER_INIT, hand_over, HookType.AROUND)
    HookRegistry.register(PREFILL, end_prefill, HookType.BEFORE)


def hand_over(original, controller, *args, **kwargs) -> None:
    """Around AdaptiveController.__init__(worker, policy): the policy is ours, with SGLang's inside.
    Where ours does not fit, or fails, SGLang's own is handed over unchanged."""
    try:
        bound = inspect.signature(original).bind(controller, *args, **kwargs)
        if problem := parameters_problem("AdaptiveController", original, PARAMETERS):
            raise ValueError(problem)
        bound.arguments["policy"] = place_of(bound.arguments["policy"], bound.arguments["worker"])
    except Exception as error:
        logger.warning("SmartSpec does not decide (%s): SGLang's own policy does", error)
        return original(controller, *args, **kwargs)
    return original(*bound.args, **bound.kwargs)


def place_of(policy, worker):
    """Our policy, in the place of this one. Under tensor parallelism all ranks have ours, or
    none."""
    from smartspec.core.cache_folder import cache_folder
    from smartspec.sglang_plugin.policy import GoodputSteps
    from smartspec.vllm_plugin.file_thread import FileThread
    from smartspec.vllm_plugin.switch import Switch

    problem, group = policy_problem(policy), None
    if worker.server_args.tp_size > 1:
        from sglang.srt.distributed import get_tp_group

        group = get_tp_group()
        problem = next(filter(None, group.all_gather_object(problem)), None)
    if problem:
        raise ValueError(problem)
    off_file = cache_folder() / "sglang" / "off"
    ours = GoodputSteps(policy, Switch(off_file, FileThread(), log=logger), logger.warning)
    logger.info(
        "SmartSpec decides draft steps out of %s; `touch %s` turns it off",
        policy.candidate_steps,
        off_file,
    )
    return ours if group is None else Agreed(ours, group)


def end_prefill(processor, *args, **kwargs) -> None:
    """Note the end of prefill before process_batch_result_prefill(batch, result), which begins by
    waiting for result. Our policy waits too, and knows then when prefill has ended."""
    controller = getattr(getattr(processor, "model_worker", None), "adaptive_controller", None)
    told = getattr(getattr(controller, "params", None), "end_prefill", None)
    if told is not None:
        told(kwargs.get("result", args[-1] if args else None))


def version_problem(version: str, environment: Mapping[str, str]) -> str | None:
    """Says why this version of SGLang is left alone."""
    if version in TESTED or environment.get(UNTESTED) == "1":
        return None
    return (
        f"SmartSpec is tested with SGLang {', '.join(TESTED)}, this is {version} (to try it: "
        f"{UNTESTED}=1)"
    )


def policy_problem(policy: object) -> str | None:
    """Names the first method of SGLang's policy that is missing or has other parameters, or says
    why there is nothing to decide."""
    for name, expected in METHODS.items():
        method = getattr(policy, name, None)
        if problem := parameters_problem(f"{type(policy).__name__}.{name}", method, expected):
            return problem
    steps = policy.candidate_steps
    return None if len(steps) > 1 else f"candidate_steps are {steps}, with nothing to choose from"


def parameters_problem(
    name: str, function: Callable | None, expected: tuple[str, ...]
) -> str | None:
    """Says that a function is missing, or cannot be called with these parameters, in this order.
    Further ones that have defaults may follow."""
    signature = None if function is None else inspect.signature(function)
    with suppress(TypeError):
        if signature and all(
            found == given for found, given in signature.bind(*expected).arguments.items()
        ):
            return None
    return f"{name} takes {signature} in this version of SGLang, expected {', '.join(expected)}"
