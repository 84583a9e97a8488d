"""Runs in vLLM's environment: what SmartSpec takes of a step behind real passes of a model, where little of its code is
in the processor's caches. vllm_overhead.py, where nothing else runs, says less.

    make test-vllm     # makes .venv-vllm and the model
    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/vllm_hooks.py .venv-vllm/model

Printed by the number of requests that decode: median step, and milliseconds on average that the next step waits for the
scheduler's hooks, those of the controller and the others, and that are spent on learning while a step runs. ngram
drafts, greedy, shipped chat prompts, vLLM in this process.
"""

import os
import sys
import time
from tempfile import TemporaryDirectory

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("NUMBA_THREADING_LAYER", "workqueue")  # see docs/vllm.md

NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
HOOKS = ("before_schedule", "after_schedule", "before_update", "after_update")
ASKED = ("plan", "cut")
MEANWHILE = ("while_running",)
BATCHES, NUM_PROMPTS, MAX_TOKENS = (1, 4, 8), 8, 48


class Timed:
    """Adds up the seconds that methods take."""

    def __init__(self, thing: object, names: tuple[str, ...]):
        self.seconds = 0.0
        for name in names:
            setattr(thing, name, self._timed(getattr(thing, name)))

    def _timed(self, method):
        def call(*arguments):
            began = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                self.seconds += time.perf_counter() - began

        return call


def watch(speculation) -> list[tuple]:
    """Will hold, of each step with a controller: requests that decode, prefills, seconds, and those that hooks, the
    controller in them, and learning have taken since the start."""
    seen: list[tuple] = []
    hooks, meanwhile, made = Timed(speculation, HOOKS), Timed(speculation, MEANWHILE), []
    make_controller, after_update = speculation._make_controller, speculation.after_update

    def make_timed(latency):
        controller = make_controller(latency)
        made.append(Timed(controller, ASKED))
        return controller

    def note(finished):
        after_update(finished)
        if finished is not None and made:
            step = finished[0]
            seconds = step.seconds, hooks.seconds, made[0].seconds, meanwhile.seconds
            seen.append((step.num_decoding, step.prefill.num_prefills, *seconds))

    speculation._make_controller, speculation.after_update = make_timed, note
    return seen


def main(model: str) -> None:
    import numpy as np
    from vllm import LLM, SamplingParams

    from smartspec.workload.prompts import shipped_prompts

    chats = [[{"role": "user", "content": p.text}] for p in shipped_prompts() if p.task == "chat"][:NUM_PROMPTS]
    with TemporaryDirectory() as folder:
        llm = LLM(
            model,
            speculative_config=NGRAM,
            scheduler_cls="smartspec.vllm_plugin.Scheduler",
            additional_config={"smartspec": {"cache": folder}},
            max_num_seqs=max(BATCHES),
            max_model_len=1024,
            dtype="float32",
            enforce_eager=True,
        )
        seen = watch(llm.llm_engine.engine_core.engine_core.scheduler.speculation)
        params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
        for size in BATCHES:
            for first in range(0, NUM_PROMPTS, size):
                llm.chat(chats[first : first + size], params, use_tqdm=False)
    steps = np.array(seen)
    took, steps = 1e3 * np.diff(steps[:, 3:], axis=0), steps[1:]
    for size in BATCHES:
        counts = (steps[:, 0] == size) & (steps[:, 1] == 0)
        step, (hooks, controller, meanwhile) = 1e3 * np.median(steps[counts, 2]), took[counts].mean(axis=0)
        share = took[counts, 0].sum() / steps[counts, 2].sum() / 10
        print(
            f"{size} requests, {counts.sum()} steps of {step:.1f} ms: {hooks:.2f} ms ({share:.1f} %), "
            f"controller {controller:.2f}, plugin {hooks - controller:.2f}; meanwhile {meanwhile:.2f}"
        )


if __name__ == "__main__":  # vLLM starts processes that import this file
    main(sys.argv[1])
