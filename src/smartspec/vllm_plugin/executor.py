"""vLLM's executor, where it does more than vLLM's.

Drafts that are made in the scheduler: workers have no drafts, so there is no call for any. They do steps without drafts
as they do without speculation, and the call to sample reaches them before a pass ends. Beside adaptive verification:
workers say what they verified, and get step times with a step that carries some (see adaptive.py).
"""

import inspect
import logging
from concurrent.futures import Future

from vllm.platforms import current_platform
from vllm.v1.executor.abstract import Executor as VllmExecutor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from smartspec.vllm_plugin.adaptive import COSTS
from smartspec.vllm_plugin.adaptive_worker import take_costs, tell_admitted
from smartspec.vllm_plugin.compatibility import drafts_in_scheduler, is_adaptive

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets

RUNNER_PARAMETERS = ("scheduler_output", "intermediate_tensors")  # of a model runner's execute_model, V1


class Executor(VllmExecutor):
    """For `--distributed-executor-backend smartspec.vllm_plugin.executor.Executor`: the executor that vLLM would take
    on this machine, with worker processes or without. Other methods of speculation find no difference."""

    supports_pp = MultiprocExecutor.supports_pp
    tells_admitted = True  # outputs say what adaptive verification has verified

    def __new__(cls, vllm_config):
        """Of a class that is vLLM's own and this one."""
        is_alone = vllm_config.parallel_config.world_size == 1 and not current_platform.is_cpu()
        stock = UniProcExecutor if is_alone else MultiprocExecutor
        return super().__new__(type("Executor", (cls, stock), {}))

    def _init_executor(self) -> None:
        super()._init_executor()
        self._drafts_here = drafts_in_scheduler(self.vllm_config)
        self._takes_costs: bool | None = None if is_adaptive(self.vllm_config) else False  # None: not tried yet
        self._nothing: Future[None] = Future()
        self._nothing.set_result(None)
        self._pass = self._nothing  # that the workers do, or did last
        if not self._drafts_here:
            return
        if problem := self._problem(leave_out_speculation, RUNNER_PARAMETERS):
            logger.warning("Steps without drafts are computed as those with drafts, as vLLM does it: %s.", problem)

    def _problem(self, change, *arguments) -> str | None:
        """Why workers cannot be changed so, None if they have been. No error ends a server that works as vLLM does."""
        try:
            return next(filter(None, self.collective_rpc(change, args=arguments)), None)
        except Exception as error:
            return repr(error)

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """As vLLM's own."""
        return MultiprocExecutor.supports_async_scheduling()

    def execute_model(self, scheduler_output, non_block: bool = False):
        """Let the workers begin a pass. vLLM would wait for its end before it calls them to sample: here it may do so
        at once, as with asynchronous scheduling."""
        if self._takes_costs is not False:
            self._send_costs(vars(scheduler_output).pop(COSTS, None))
        result = super().execute_model(scheduler_output, non_block=non_block)
        if not (self._drafts_here and non_block and scheduler_output.total_num_scheduled_tokens):
            return result
        self._pass = result
        return self._nothing

    def _send_costs(self, curves) -> None:
        """Costs that came with a step, before it. Not before the first step the workers have what is changed."""
        if self._takes_costs is None:
            problem = self._problem(tell_admitted)
            self._takes_costs = problem is None
            if problem is not None:
                logger.warning("Adaptive verification goes by vLLM's own step times: %s.", problem)
        if curves is not None and self._takes_costs and (problem := self._problem(take_costs, curves)):
            self._takes_costs = False
            logger.warning("Adaptive verification keeps the last step times: %s.", problem)

    def sample_tokens(self, grammar_output, non_block: bool = False):
        """What the workers answer after their pass. If that failed, its error is raised."""
        output = super().sample_tokens(grammar_output, non_block=non_block)
        if not non_block:
            self._pass.result()
        return output

    def take_draft_token_ids(self):
        """Nothing: the workers have no drafts."""
        return None if self._drafts_here else super().take_draft_token_ids()


def leave_out_speculation(worker, expected: tuple[str, ...]) -> str | None:
    """From here on a worker of vLLM does steps without drafts as if no speculation were configured: it prepares less,
    and uses the plain sampler. If its runner is not as expected, nothing changes, and a text says so."""
    runner = worker.model_runner
    parameters = tuple(inspect.signature(runner.execute_model).parameters)
    if parameters != expected or not hasattr(runner, "speculative_config"):
        return f"{type(runner).__name__}.execute_model takes {parameters} in this version of vLLM, expected {expected}"
    if runner.model_config.is_hybrid:
        return "the model has states, whose place depends on accepted drafts"
    execute_model, speculation = runner.execute_model, runner.speculative_config

    def execute_model_of(scheduler_output, intermediate_tensors=None):
        # Sampling, which follows, reads it too.
        runner.speculative_config = speculation if scheduler_output.scheduled_spec_decode_tokens else None
        return execute_model(scheduler_output, intermediate_tensors)

    runner.execute_model = execute_model_of
    return None
