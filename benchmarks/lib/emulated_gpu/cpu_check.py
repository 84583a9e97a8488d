"""Runs in vLLM's environment: tokens per second of vLLM's CPU build, really computed and emulated.

    python -m lib.emulated_gpu.cpu_check MODEL RESULT CONCURRENCY       # in benchmarks/

Some prompts are computed to warm up, then others. Their steps say how long a step of a size takes.
With these times and with the texts that were computed, the same prompts are emulated. So what is
checked is all but the machine's drift: the engine's loop, the clock, accepted drafts, and times by
size. RESULT is written: by policy, tokens per second of both.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from lib.emulated_gpu.worker import ENVIRONMENT

NUM_WARM, NUM_PROMPTS, MIN_TOKENS, MAX_TOKENS, LONGEST_PROMPT = 4, 16, 32, 64, 300
TASKS = ("summarization", "rag", "editing", "chat")
POLICIES = {"off": 0, "fixed:3": 3}


class StepLog:
    """Sizes of an engine's steps, and their seconds from completion to completion."""

    def __init__(self, core):
        self.samples: list = []
        self._scheduler = core.scheduler
        self._schedule, self._update = core.scheduler.schedule, core.scheduler.update_from_output
        self._last: float | None = None
        self._size: tuple[int, int, int, int] | None = None
        core.scheduler.schedule, core.scheduler.update_from_output = self._scheduled, self._updated

    def rest(self) -> None:
        self._last = None

    def _scheduled(self, *arguments, **options):
        output = self._schedule(*arguments, **options)
        fed, context, scored = 0, 0, 0
        for name, count in output.num_scheduled_tokens.items():
            request, drafted = (
                self._scheduler.requests[name],
                output.scheduled_spec_decode_tokens.get(name, ()),
            )
            fed += count
            context += request.num_computed_tokens
            if request.num_computed_tokens - len(drafted) >= request.num_tokens:
                scored += 1 + len(drafted)
        self._size = fed, context, len(output.num_scheduled_tokens), scored
        return output

    def _updated(self, *arguments, **options):
        from smartspec.control import ProfileSample

        outputs = self._update(*arguments, **options)
        now = time.perf_counter()
        fed, context, rows, scored = self._size
        if self._last is not None and fed:
            self.samples.append(
                ProfileSample(fed, context, rows, now - self._last, scored_tokens=scored)
            )
        self._last = now
        return outputs


def main(model: str, result_path: Path, concurrency: int) -> None:
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from lib.emulated_gpu.acceptance import Text

    prompts, result = _prompts(model), {}
    first, second = prompts[:NUM_WARM], prompts[NUM_WARM:]
    for policy, length in POLICIES.items():
        samples, speed, answers = _computed(model, length, concurrency, first, second)
        curve = _curve(samples)
        texts = [
            Text(tuple(prompt), tuple(answer))
            for prompt, answer in zip(second, answers, strict=True)
        ]
        result[policy] = speed, _emulated(model, length, concurrency, texts, curve)
        print(
            f"{policy}: computed {speed:.1f} tokens/s, emulated {result[policy][1]:.1f}", flush=True
        )
    result_path.write_text(json.dumps(result))


def _curve(samples: list):
    """Step times by size. The fit is one of relative errors, in which rare slow steps count little;
    so it is scaled to the sum of all seconds."""
    from smartspec.control import CostCurve

    curve = CostCurve.fit(samples)
    measured = np.array([sample.seconds for sample in samples])
    factor = measured.sum() / (measured * (1.0 + curve.relative_errors(samples))).sum()
    numbers = {field.name: factor * np.array(getattr(curve, field.name)) for field in fields(curve)}
    return replace(curve, **numbers | {"knots": curve.knots, "slopes": tuple(numbers["slopes"])})


def _prompts(model: str) -> list[list[int]]:
    """Token ids of shipped prompts of all kinds."""
    from transformers import AutoTokenizer

    from smartspec.workload.prompts import shipped_prompts

    tokenizer = AutoTokenizer.from_pretrained(model)
    found: dict[str, list[list[int]]] = {task: [] for task in TASKS}
    for prompt in shipped_prompts():
        if prompt.task in found:
            chat = [{"role": "user", "content": prompt.text}]
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            if len(ids) <= LONGEST_PROMPT:
                found[prompt.task].append(list(ids))
    mixed = [ids for group in zip(*found.values(), strict=False) for ids in group]
    return [mixed[number % len(mixed)] for number in range(NUM_WARM + NUM_PROMPTS)]


def _load(prompts: Sequence[Sequence[int]], concurrency: int):
    from lib.emulated_gpu.load import Load

    lengths = np.random.default_rng(len(prompts[0])).integers(
        MIN_TOKENS, MAX_TOKENS, len(prompts), endpoint=True
    )
    return Load(
        0, len(prompts), np.array([*map(len, prompts)]), lengths, concurrency, None, prompts
    )


def _config(model: str, length: int, concurrency: int, **options):
    from vllm.engine.arg_utils import EngineArgs

    ngram = {
        "method": "ngram",
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
        "num_speculative_tokens": length,
    }
    return EngineArgs(
        model=model,
        speculative_config=ngram if length else None,
        max_num_seqs=concurrency,
        max_model_len=1024,
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=True,
        **options,
    ).create_engine_config()


def _run(core, load, rest) -> tuple[float, list[list[int]]]:
    """Tokens per second, and answers in order."""
    from lib.emulated_gpu.load import Client

    began = time.perf_counter()
    window = Client(core, load, rest).run(load.num_measured)
    seconds = time.perf_counter() - began
    return window.tokens / seconds, [
        r.tokens for r in sorted(window.ended, key=lambda request: request.number)
    ]


def _computed(
    model: str, length: int, concurrency: int, first, second
) -> tuple[list, float, list[list[int]]]:
    """Samples of steps, tokens per second and answers of the second prompts. The first ones warm
    up."""
    from vllm.platforms import current_platform
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor

    if "llvmlite" in sys.modules:
        # vLLM registers its kernels at every start, for which it looks into all modules; it trips
        # over those of numba, which ngram loads. They are registered already.
        type(current_platform).register_triton_kernel_overrides = classmethod(lambda cls: None)
    config = _config(model, length, concurrency)
    core = EngineCore(config, Executor.get_class(config), log_stats=False)
    try:
        log = StepLog(core)
        _run(core, _load(first, concurrency), log.rest)
        log.samples.clear()
        speed, answers = _run(core, _load(second, concurrency), log.rest)
        return log.samples, speed, answers
    finally:
        core.shutdown()


def _emulated(model: str, length: int, concurrency: int, texts, curve) -> float:
    """Tokens per second."""
    from vllm.v1.engine.core import EngineCore

    from lib.emulated_gpu.acceptance import TextAcceptance
    from lib.emulated_gpu.clock import Clock
    from lib.emulated_gpu.executor import GPU, executor_of
    from lib.emulated_gpu.step_time import GPUTime

    acceptance = TextAcceptance(texts, max(length, 1))
    gpu = GPU(
        GPUTime(curve), acceptance, Clock(from_completion=True), frozenset(), has_drafter=length > 0
    )
    config = _config(model, length, concurrency)
    core = EngineCore(config, executor_of(gpu), log_stats=False)
    try:
        return _run(core, _load([text.prompt for text in texts], concurrency), gpu.clock.rest)[0]
    finally:
        core.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
