"""The controller inside SGLang, by its plugin hooks: `SMARTSPEC_SGLANG=on python -m
sglang.launch_server --speculative-adaptive ...`. See docs/sglang.md."""

from smartspec.sglang_plugin.plugin import register

__all__ = ["register"]
