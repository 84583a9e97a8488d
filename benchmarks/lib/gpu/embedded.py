"""The project's own engine on CUDA: greedy tokens and tokens per second, without speculation and
with copied drafts."""

import time

import numpy as np

from lib.gpu import models
from lib.gpu.plan import Plan
from lib.gpu.results import Results

NEW_TOKENS = 128
POLICIES = ("off", "fixed:4")


def run_embedded(results: Results, plan: Plan) -> None:
    """A random Llama of SmolLM2-135M's shape, whose text goes in circles. RuntimeError if an answer
    differs, or if no draft was accepted."""
    folder = plan.folder / "models" / "smollm2"
    shape = models.SMOLLM2_135M | ({"num_hidden_layers": 2} if plan.emulates else {})
    if not (folder / "tokenizer.json").exists():
        models.repeating_model(folder, shape)
        models.add_tokenizer(folder)
    found = {}
    for dtype in ("float32", "bfloat16"):
        for policy in POLICIES:
            found[dtype, policy] = run_policy(results, str(folder), dtype, policy, plan.emulates)
    plain, copied = (found["float32", policy] for policy in POLICIES)
    equal = sum(a == b for a, b in zip(plain, copied, strict=True))
    results.add(exact="embedded", policy=POLICIES[1], equal=equal, of=len(plain))
    if equal < len(plain):
        raise RuntimeError(
            f"the project's engine: {len(plain) - equal} of {len(plain)} answers differ"
        )


def run_policy(
    results: Results, folder: str, dtype: str, policy: str, emulates: bool
) -> list[list[int]]:
    """Tokens of 16 requests."""
    from smartspec import LLM, SamplingParams

    rng, answers = np.random.default_rng(1), []
    drafts = {} if policy == "off" else {"drafters": ("prompt-lookup",), "datastore": "none"}
    device, new_tokens = ("cpu", 8) if emulates else ("cuda", NEW_TOKENS)
    greedy = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
    options = {
        "device": device,
        "dtype": dtype,
        "policy": policy,
        "max_batch": 32,
        "max_model_len": 1024,
    }
    with LLM(folder, **options, **drafts) as llm:
        for count in (1, 16):
            prompts = [rng.integers(10, models.VOCABULARY, 80).tolist() for _ in range(count)]
            llm.generate(prompts, SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True))
            began = time.perf_counter()
            outputs = llm.generate(prompts, greedy)
            seconds = time.perf_counter() - began
            answers = [output.token_ids for output in outputs]
            tokens, steps = sum(map(len, answers)), sum(output.num_steps for output in outputs)
            results.add(
                embedded=policy, dtype=dtype, level=count, tokens_per_s=tokens / seconds,
                tokens_per_row=tokens / steps, step_ms=1e3 * seconds * count / steps,
            )  # fmt: skip
    return answers
