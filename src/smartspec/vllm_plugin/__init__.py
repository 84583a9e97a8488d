"""The controller inside vLLM: `vllm serve ... --scheduler-cls smartspec.vllm_plugin.Scheduler`. See docs/vllm.md."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smartspec.vllm_plugin.scheduler import Scheduler as Scheduler


def __getattr__(name: str):
    """The scheduler, imported when it is named: check and serve run where vLLM is not installed."""
    if name == "Scheduler":
        from smartspec.vllm_plugin.scheduler import Scheduler

        return Scheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
