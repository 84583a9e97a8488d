"""Runs in vLLM's environment, with the folder of a model as its argument: see `vllm_plugin.py
hooks`."""

import os
import sys
import time
from tempfile import TemporaryDirectory

from vllm_timed import CONTROLLER, HOOKS, MEANWHILE, Timed

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "NUMBA_THREADING_LAYER": "workqueue",  # see docs/vllm.md
}
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 5,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}
BATCHES, NUM_PROMPTS, MAX_TOKENS = (1, 4, 8), 8, 48


def watch(speculation) -> list[tuple]:
    """Will hold, of each step with a controller: requests that decode, prefills, seconds, and those
    that hooks, the controller in them, and learning have taken since the start."""
    seen: list[tuple] = []
    hooks, meanwhile = Timed(time.perf_counter), Timed(time.perf_counter)
    controller = Timed(time.perf_counter, within=hooks)
    hooks.wrap(speculation, HOOKS)
    meanwhile.wrap(speculation, MEANWHILE)
    make_controller, after_update = speculation.learner.make_controller, speculation.after_update

    def make_timed(latency):
        made = make_controller(latency)
        controller.wrap(made, CONTROLLER)
        return made

    def note(finished, outputs):
        after_update(finished, outputs)
        if finished is not None and speculation.learner.controller is not None:
            step = finished[0]
            seconds = step.seconds, hooks.seconds, controller.seconds, meanwhile.seconds
            seen.append((step.num_decoding, step.prefill.num_prefills, *seconds))

    speculation.learner.make_controller, speculation.after_update = make_timed, note
    return seen


def main(model: str) -> None:
    os.environ.update(ENVIRONMENT | os.environ)
    import numpy as np
    from vllm import LLM, SamplingParams

    from smartspec.workload.prompts import shipped_prompts

    chats = [[{"role": "user", "content": p.text}] for p in shipped_prompts() if p.task == "chat"][
        :NUM_PROMPTS
    ]
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
        step, (hooks, controller, meanwhile) = (
            1e3 * np.median(steps[counts, 2]),
            took[counts].mean(axis=0),
        )
        share = took[counts, 0].sum() / steps[counts, 2].sum() / 10
        print(
            f"{size} requests, {counts.sum()} steps of {step:.1f} ms: {hooks:.2f} ms ({share:.1f} "
            f"%), controller {controller:.2f}, plugin {hooks - controller:.2f}; meanwhile "
            f"{meanwhile:.2f}"
        )


if __name__ == "__main__":  # vLLM starts processes that import this file
    main(sys.argv[1])
