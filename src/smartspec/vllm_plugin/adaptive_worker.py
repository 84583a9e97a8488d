"""In vLLM's workers, where adaptive verification is enabled: say what was verified, and take step times.

These functions are called in all workers through vLLM's collective_rpc. They wrap a method of two objects:
AdaptiveVerificationManager.reallocate_drafts, and sample_tokens of the V2 model runner (vLLM 0.32 and 0.33:
v1/worker/gpu/spec_decode/adaptive_verification.py, v1/worker/gpu/model_runner.py). They read _batch_draft_capacity, in
which the manager counts, on the device, the draft tokens that it admits of each request.
"""

import inspect

from smartspec.vllm_plugin.adaptive import ADMITTED, CostCurves
from smartspec.vllm_plugin.compatibility import CAPACITY, MANAGER, RUNNER


def tell_admitted(worker) -> str | None:
    """From here on each output of this worker says how many draft tokens of each request were verified, in the order of
    its requests. If vLLM is not as expected nothing changes, and a text says so."""
    runner = worker.model_runner
    manager = getattr(runner, "adaptive_verification", None)
    if manager is None:
        return f"{type(runner).__name__} has no adaptive verification"
    if problem := _problem(manager, MANAGER) or _problem(runner, RUNNER):
        return problem
    if not hasattr(manager, CAPACITY):
        return f"{type(manager).__name__}.{CAPACITY} does not exist in this version of vLLM"
    reallocate_drafts, sample_tokens = manager.reallocate_drafts, runner.sample_tokens
    noted: list = []  # the counts of the step that was begun and not sampled yet

    def reallocate_and_note(req_ids, idx_mapping):
        found = reallocate_drafts(req_ids, idx_mapping)
        noted[:] = [_copied_to_host(getattr(manager, CAPACITY)[: len(req_ids)])]
        return found

    def sample_and_tell(grammar_output):
        output = sample_tokens(grammar_output)
        counts = noted.pop() if noted else None
        if output is not None and counts is not None:
            _tell(output, counts)
        return output

    manager.reallocate_drafts, runner.sample_tokens = reallocate_and_note, sample_and_tell
    return None


def take_costs(worker, curves: CostCurves) -> None:
    """Use these step times from the next step on, on all ranks alike: vLLM sends those of the first to the others."""
    worker.model_runner.adaptive_verification.set_cost_curves(list(curves.draft), list(curves.verify))


def _copied_to_host(counts):
    """A copy that is complete as soon as the step's tokens are on the host: it is in the stream before them."""
    return counts.new_empty(counts.shape, device="cpu", pin_memory=counts.is_cuda).copy_(counts, non_blocking=True)


def _tell(output, counts) -> None:
    """Put the counts into an output, of an asynchronous one as soon as it is complete."""
    if not hasattr(output, "get_output"):
        setattr(output, ADMITTED, counts.tolist())
        return
    get_output = output.get_output

    def get_and_tell():
        complete = get_output()
        setattr(complete, ADMITTED, counts.tolist())
        return complete

    output.get_output = get_and_tell


def _problem(owner: object, methods: dict[str, tuple[str, ...]]) -> str | None:
    for name, expected in methods.items():
        method = getattr(owner, name, None)
        parameters = None if method is None else tuple(inspect.signature(method).parameters)
        if parameters != expected:
            return f"{type(owner).__name__}.{name} takes {parameters} in this version of vLLM, expected {expected}"
    return None
