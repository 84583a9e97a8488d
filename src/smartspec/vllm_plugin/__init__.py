"""The controller inside vLLM: `vllm serve ... --scheduler-cls smartspec.vllm_plugin.Scheduler`. See
docs/vllm.md.

Names that people and vLLM type are files at the top. The folders are serve (the command line of
`vllm serve`), step (the requests, decision and outcome of a step), costs (step times), speculation
(drafts, learner, decider, builder), ab (off and on, and their comparison) and observed (policy
`observe`).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smartspec.vllm_plugin.scheduler import Scheduler as Scheduler


def __getattr__(name: str):
    """Return the scheduler, imported here alone: check and serve run where vLLM is not
    installed."""
    if name == "Scheduler":
        from smartspec.vllm_plugin.scheduler import Scheduler

        return Scheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
