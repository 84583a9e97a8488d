"""Stands in for vLLM 0.32 where that is not installed: what smartspec.vllm_plugin.compatibility
checks, and no more."""

__version__ = "0.32.0"
