"""The controller inside vLLM: `vllm serve ... --scheduler-cls smartspec.vllm_plugin.Scheduler`. See docs/vllm.md."""

from smartspec.vllm_plugin.scheduler import Scheduler

__all__ = ["Scheduler"]
