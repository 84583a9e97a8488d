"""Runs in vLLM's environment: one server of `gpu_check.py`, in this process. Arguments: settings
(JSON), result."""

import json
import os
import sys
import time
from itertools import count
from pathlib import Path

from smartspec.vllm_plugin.compatibility import EXECUTOR, NO_DRAFTS

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the scheduler can be looked at
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("NUMBA_THREADING_LAYER", "workqueue")  # see docs/vllm.md


def main(settings: dict) -> dict:
    """Answers of the prompts, tokens per second of each level, and what was drafted and accepted
    meanwhile."""
    import vllm
    from vllm.platforms import current_platform

    from smartspec.vllm_plugin.check import installed_package, missing_members
    from smartspec.workload.prompts import shipped_prompts

    chats = [[{"role": "user", "content": prompt.text}] for prompt in shipped_prompts()]
    llm = make_llm(settings, current_platform.is_cpu())
    is_ours = settings["name"] == "smartspec"
    # learns, or warms up
    throughput(llm, chats, settings, settings["levels"] if is_ours else settings["levels"][:1])
    found = answers(
        llm, chats[:: len(chats) // settings["num_prompts"]][: settings["num_prompts"]], settings
    )
    before = counters(llm)
    speeds = throughput(llm, chats, settings, settings["levels"])
    drafted, accepted = (after - first for after, first in zip(counters(llm), before, strict=True))
    return {
        "vllm": vllm.__version__,
        "device": current_platform.get_device_name(),
        "problems": [*missing_members(installed_package()), *problems_of(llm)] if is_ours else [],
        "answers": found,
        "tokens_per_second": speeds,
        "drafted": drafted,
        "accepted": accepted,
    }


def make_llm(settings: dict, is_cpu: bool):
    from vllm import LLM

    options = {"dtype": "float32", "enforce_eager": True} if is_cpu else {}
    if settings["name"] == "smartspec":
        options |= {
            "scheduler_cls": "smartspec.vllm_plugin.Scheduler",
            "additional_config": {"smartspec": {"cache": settings["cache"]}},
        }
    if settings["speculation"] and settings["speculation"].get("model") == NO_DRAFTS:
        options["distributed_executor_backend"] = EXECUTOR
    return LLM(
        settings["model"],
        speculative_config=settings["speculation"],
        max_num_seqs=max(settings["levels"]),
        max_model_len=2048,
        enable_prefix_caching=False,  # every prompt comes several times
        disable_log_stats=False,
        **options,
    )


def answers(llm, chats: list, settings: dict) -> list[dict]:
    """Greedy answers. Without speculation, also the log-probabilities of the likeliest tokens at
    each position."""
    from vllm import SamplingParams

    wants_best = settings["speculation"] is None
    params = SamplingParams(
        temperature=0.0, max_tokens=settings["max_tokens"], logprobs=5 if wants_best else None
    )
    found = []
    for output in llm.chat(chats, params, use_tqdm=False):
        answer = output.outputs[0]
        best = [
            {str(token): entry.logprob for token, entry in one.items()}
            for one in answer.logprobs or []
        ]
        found.append({"tokens": list(answer.token_ids), "best": best})
    return found


def throughput(llm, chats: list, settings: dict, levels: list[int]) -> dict[str, float]:
    """Tokens per second by requests at a time, closed loop."""
    return {str(level): speed(llm, chats, settings, level) for level in levels}


numbers = count()


def speed(llm, chats: list, settings: dict, level: int) -> float:
    from vllm import SamplingParams

    tokenizer, engine = llm.get_tokenizer(), llm.llm_engine
    params = SamplingParams(temperature=0.0, max_tokens=settings["max_tokens"], ignore_eos=True)
    prompts = [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        for chat in chats
    ]
    left = round(settings["waves"] * level)
    begun, running, tokens = time.perf_counter(), 0, 0
    while left or running:
        while left and running < level:
            number = next(numbers)
            engine.add_request(f"cell-{number}", prompts[number % len(prompts)], params)
            left, running = left - 1, running + 1
        finished = [output for output in engine.step() if output.finished]
        running -= len(finished)
        tokens += sum(len(output.outputs[0].token_ids) for output in finished)
    return tokens / (time.perf_counter() - begun)


def counters(llm) -> tuple[int, int]:
    """Draft tokens, and accepted ones, as vLLM counts them."""
    found = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return tuple(
        int(found.get(f"vllm:spec_decode_num_{name}_tokens", 0)) for name in ("draft", "accepted")
    )


def problems_of(llm) -> list[str]:
    """Why SmartSpec did not decide, if it did not."""
    speculation = getattr(llm.llm_engine.engine_core.engine_core.scheduler, "speculation", None)
    if speculation is None:
        return ["SmartSpec is not in use: the log says why"]
    if speculation.learner.controller is None:
        return ["too few steps to learn step times: raise --max-tokens or --waves"]
    num_errors = speculation.learner.controller.num_errors
    return [f"the controller failed {num_errors} times: see the log"] if num_errors else []


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
