"""vLLM in this process, with its own scheduler or ours, or as a server, and a policy whose lengths
never rest."""

import gc
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from vllm import LLM, SamplingParams
from vllm.platforms import current_platform

from smartspec.control import BatchView, Controller, Plan, Policy
from smartspec.vllm_plugin.compatibility import NO_DRAFTS
from smartspec.vllm_plugin.speculation import builder

START_SECONDS = 600
LONGEST = 5
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": LONGEST,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}
IN_SCHEDULER = {"model": NO_DRAFTS, "num_speculative_tokens": LONGEST}
ALL_DRAFTERS = {"drafter": "prompt-lookup,recycling,datastore"}
EXECUTOR = {"distributed_executor_backend": "smartspec.vllm_plugin.executor.Executor"}


def self_draft(model: str) -> dict:
    """The target as its own draft model: whatever it drafts is right, unless its KV is not."""
    return {"method": "draft_model", "model": model, "num_speculative_tokens": 3}


class RestlessLengths(Policy):
    """Drafters and lengths drawn anew for every request and step, and sometimes none for many
    steps: a host that survives this survives any policy."""

    def __init__(self, seed: int = 0):
        self._random = np.random.default_rng(seed)
        self._quiet_steps = 0

    def plan(self, view: BatchView, estimates) -> Plan:
        if not self._quiet_steps and self._random.random() < 0.1:
            self._quiet_steps = int(self._random.integers(1, 12))
        drafter = self._random.integers(0, len(view.draft_lengths), size=view.num_rows)
        lengths = self._random.integers(
            0, view.draft_lengths[drafter, np.arange(view.num_rows)] + 1
        )
        if self._quiet_steps:
            self._quiet_steps -= 1
            lengths = np.zeros_like(lengths)
        return Plan(lengths, np.where(lengths > 0, drafter, -1))


def restless(monkeypatch) -> None:
    """Every controller from here on decides so."""

    def controller(policy, *arguments, **options):
        return Controller(RestlessLengths(), *arguments, strict=True, **options)

    monkeypatch.setattr(builder, "Controller", controller)


def asynchronous(monkeypatch) -> None:
    """vLLM turns asynchronous scheduling off on CPUs, last; from here on it does not."""
    check = current_platform.check_and_update_config

    def check_and_turn_on(vllm_config):
        check(vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    monkeypatch.setattr(
        type(current_platform), "check_and_update_config", staticmethod(check_and_turn_on)
    )


@contextmanager
def serving(
    model: str,
    speculation: dict | None,
    folder: Path | None = None,
    settings: dict | None = None,
    **options,
):
    """An LLM; ours where folder says where costs are to be kept, else stock."""
    ours = {}
    if folder is not None:
        section = {"cache": str(folder), "policy": "fixed:3", "metrics_seconds": 0} | (
            settings or {}
        )
        ours = {
            "scheduler_cls": "smartspec.vllm_plugin.Scheduler",
            "additional_config": {"smartspec": section},
        }
    if "llvmlite" in sys.modules:
        # vLLM registers its kernels at every start, for which it looks into all modules; it trips
        # over those of numba, which ngram loads. They are registered already.
        type(current_platform).register_triton_kernel_overrides = classmethod(lambda cls: None)
    options = {
        "max_num_seqs": 8,
        "max_model_len": 1024,
        "enforce_eager": True,
        "dtype": "float32",
    } | options
    llm = LLM(model, speculative_config=speculation, disable_log_stats=False, **ours, **options)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def scheduler_of(llm: LLM):
    return llm.llm_engine.engine_core.engine_core.scheduler


def free_blocks(llm: LLM) -> int:
    """Free KV blocks; cached prefixes count as free."""
    return scheduler_of(llm).kv_cache_manager.block_pool.get_num_free_blocks()


def answers(llm: LLM, prompts: list[str], max_tokens: int = 48) -> list[list[int]]:
    """Token ids of greedy answers."""
    messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
    outputs = llm.chat(
        messages, SamplingParams(temperature=0.0, max_tokens=max_tokens), use_tqdm=False
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


def counters(llm: LLM) -> Counter[str]:
    """vLLM's own counts of speculation."""
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    found = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return Counter({name: int(found.get(f"vllm:spec_decode_{name}", 0)) for name in names})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def server(words: list[str], log: Path, **environment: str):
    """A small server of `python -m` and these words, and its address. log: gets what it says."""
    port = free_port()
    environment = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        **environment,
    }
    command = [sys.executable, "-m", *words, "--port", str(port), "--max-num-seqs", "4"]
    command += ["--enforce-eager", "--dtype", "float32"]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(url: str, process: subprocess.Popen, log: Path) -> None:
    for _ in range(START_SECONDS):
        try:
            urllib.request.urlopen(url, timeout=1)
            return
        except OSError:
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(1)
    raise AssertionError(log.read_text()[-3000:])
