"""vLLM's executor for drafts in the scheduler and for adaptive verification, and its changes in
vLLM's workers.

Drafts in the scheduler: workers have no drafts, so there is no call for any. They do steps without
drafts as they do without speculation, and the call to sample reaches them before a pass ends.
Adaptive verification: workers tell the draft tokens that they verified, and get step times with a
step that carries some (see step/adaptive.py).

The functions below the class are called in all workers through vLLM's collective_rpc. For adaptive
verification they wrap AdaptiveVerificationManager.reallocate_drafts, and sample_tokens of the V2
model runner (vLLM 0.32 and 0.33: v1/worker/gpu/spec_decode/adaptive_verification.py,
v1/worker/gpu/model_runner.py). They read _batch_draft_capacity, in which the manager counts, on the
device, the draft tokens that it admits of each request.
"""

import logging
from concurrent.futures import Future

from vllm.platforms import current_platform
from vllm.v1.executor.abstract import Executor as VllmExecutor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from smartspec.vllm_plugin.compatibility import (
    attribute_problem,
    has_scheduler_drafts,
    is_adaptive,
    signature_problem,
)
from smartspec.vllm_plugin.needs import need_of
from smartspec.vllm_plugin.speculation.drafts import leave_out_speculation
from smartspec.vllm_plugin.step.adaptive import ADMITTED, COSTS, CostCurves

MANAGER = need_of("v1/worker/gpu/spec_decode/adaptive_verification.py")
V1_RUNNER, RUNNER = (
    need_of(f"v1/worker/{file}") for file in ("gpu_model_runner.py", "gpu/model_runner.py")
)
logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets


class Executor(VllmExecutor):
    """The executor that vLLM would take on this machine, with worker processes or without, and with
    these changes: `--distributed-executor-backend smartspec.vllm_plugin.executor.Executor`. Other
    methods find no difference."""

    supports_pp = MultiprocExecutor.supports_pp
    supports_async_scheduling = MultiprocExecutor.supports_async_scheduling
    has_admitted_counts = True  # outputs say what adaptive verification has verified

    def __new__(cls, vllm_config):
        """Make an object of a class that inherits from this one and vLLM's own."""
        is_alone = vllm_config.parallel_config.world_size == 1 and not current_platform.is_cpu()
        stock = UniProcExecutor if is_alone else MultiprocExecutor
        return super().__new__(type("Executor", (cls, stock), {}))

    def _init_executor(self) -> None:
        super()._init_executor()
        self._has_scheduler_drafts = has_scheduler_drafts(self.vllm_config)
        self._is_told = False  # of what workers verified
        self._sends_costs = is_adaptive(self.vllm_config)
        self._no_result: Future[None] = Future()
        self._no_result.set_result(None)
        self._pass = self._no_result  # of the workers, the last one
        if self._has_scheduler_drafts and (
            problem := self._change_workers(leave_out_speculation, V1_RUNNER)
        ):
            text = "Steps without drafts are computed as those with drafts, as vLLM does it: %s."
            logger.warning(text, problem)

    def _change_workers(self, change, *arguments) -> str | None:
        """Change the workers, and return the problem, None without one. An error ends no server
        that works as vLLM."""
        try:
            return next(filter(None, self.collective_rpc(change, args=arguments)), None)
        except Exception as error:
            return repr(error)

    def execute_model(self, scheduler_output, non_block: bool = False):
        """Let the workers begin a pass. vLLM would wait for its end before it calls them to sample.
        Here it may call at once, as with asynchronous scheduling."""
        if self._sends_costs:
            self._send_costs(vars(scheduler_output).pop(COSTS, None))
        result = super().execute_model(scheduler_output, non_block=non_block)
        if not (
            self._has_scheduler_drafts and non_block and scheduler_output.total_num_scheduled_tokens
        ):
            return result
        self._pass = result
        return self._no_result

    def _send_costs(self, curves) -> None:
        """Send costs that came with a step, before it. The first step is the first at which workers
        can be changed."""
        problem = None
        if not self._is_told:
            self._is_told, problem = True, self._change_workers(tell_admitted)
        if problem is None and curves is not None:
            problem = self._change_workers(take_costs, curves)
        if problem is not None:
            self._sends_costs = False
            logger.warning("Adaptive verification goes by vLLM's own step times: %s.", problem)

    def sample_tokens(self, grammar_output, non_block: bool = False):
        """Return the answer of the workers after their pass. If that failed, its error is
        raised."""
        output = super().sample_tokens(grammar_output, non_block=non_block)
        if not non_block:
            self._pass.result()
        return output

    def take_draft_token_ids(self):
        """Return nothing where the workers have no drafts."""
        return None if self._has_scheduler_drafts else super().take_draft_token_ids()


def tell_admitted(worker) -> str | None:
    """Let each output of this worker tell the number of verified draft tokens of each request, in
    the order of its requests. If vLLM is not as expected, nothing changes. Return the problem, None
    without one."""
    runner = worker.model_runner
    manager = getattr(runner, "adaptive_verification", None)
    if manager is None:
        return f"{type(runner).__name__} has no adaptive verification"
    if (
        problem := signature_problem(type(manager), MANAGER)
        or signature_problem(type(runner), RUNNER)
        or attribute_problem(manager, MANAGER)
    ):
        return problem
    reallocate_drafts, sample_tokens = manager.reallocate_drafts, runner.sample_tokens
    notes: list = []  # the counts of the step that is not sampled yet

    def reallocate_and_note(req_ids, *arguments, **options):
        result = reallocate_drafts(req_ids, *arguments, **options)
        notes[:] = [_copy_to_host(manager._batch_draft_capacity[: len(req_ids)])]
        return result

    def sample_and_tell(*arguments, **options):
        output = sample_tokens(*arguments, **options)
        counts = notes.pop() if notes else None
        if output is not None and counts is not None:
            _tell(output, counts)
        return output

    manager.reallocate_drafts, runner.sample_tokens = reallocate_and_note, sample_and_tell
    return None


def take_costs(worker, curves: CostCurves) -> None:
    """Set step times from the next step on, on all ranks alike: vLLM sends those of the first to
    the others."""
    worker.model_runner.adaptive_verification.set_cost_curves(
        list(curves.draft), list(curves.verify)
    )


def _copy_to_host(counts):
    """Return a copy that is complete as soon as the step's tokens are on the host: it is in the
    stream before them."""
    return counts.new_empty(counts.shape, device="cpu", pin_memory=counts.is_cuda).copy_(
        counts, non_blocking=True
    )


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
