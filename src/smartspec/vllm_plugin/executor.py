"""vLLM's executor for drafts that are made in the scheduler. Two things of a step with drafts are left out where there
are none: the call for drafts to the workers, and rejection sampling."""

import inspect
import logging

from vllm.platforms import current_platform
from vllm.v1.executor.abstract import Executor as VllmExecutor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from smartspec.vllm_plugin.compatibility import drafts_in_scheduler

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets

SAMPLE_PARAMETERS = ("logits", "spec_decode_metadata")  # of the model runner's _sample, vLLM 0.30 to 0.32


class Executor(VllmExecutor):
    """For `--distributed-executor-backend smartspec.vllm_plugin.executor.Executor`: the executor that vLLM would take
    on this machine, with worker processes or without. Other methods of speculation find no difference."""

    supports_pp = MultiprocExecutor.supports_pp

    def __new__(cls, vllm_config):
        """Of a class that is vLLM's own and this one."""
        is_alone = vllm_config.parallel_config.world_size == 1 and not current_platform.is_cpu()
        stock = UniProcExecutor if is_alone else MultiprocExecutor
        return super().__new__(type("Executor", (cls, stock), {}))

    def _init_executor(self) -> None:
        super()._init_executor()
        self._drafts_here = drafts_in_scheduler(self.vllm_config)
        if not self._drafts_here:
            return
        try:
            problems = self.collective_rpc(sample_plainly, args=(SAMPLE_PARAMETERS,))
        except Exception as error:  # of any kind: a server that samples as vLLM does is better than none
            problems = [repr(error)]
        if any(problems):
            text = "Steps without drafts are sampled by rejection, as vLLM does it: %s."
            logger.warning(text, next(filter(None, problems)))

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """As vLLM's own."""
        return MultiprocExecutor.supports_async_scheduling()

    def take_draft_token_ids(self):
        """Nothing: the workers have no drafts."""
        return None if self._drafts_here else super().take_draft_token_ids()


def sample_plainly(worker, expected: tuple[str, ...]) -> str | None:
    """From here on a worker of vLLM uses the plain sampler for steps without drafts, which takes less time. If the
    parameters of its sampling are not as expected, nothing changes, and a text says so."""
    runner = worker.model_runner
    sample = getattr(runner, "_sample", None)
    parameters = tuple(inspect.signature(sample).parameters) if callable(sample) else ()
    if parameters != expected or "num_draft_tokens" not in SpecDecodeMetadata.__dataclass_fields__:
        return f"{type(runner).__name__}._sample takes {parameters} in this version of vLLM, expected {expected}"

    def sample_of(logits, spec_decode_metadata):
        has_drafts = spec_decode_metadata is not None and any(spec_decode_metadata.num_draft_tokens)
        return sample(logits, spec_decode_metadata if has_drafts else None)

    runner._sample = sample_of
    return None
