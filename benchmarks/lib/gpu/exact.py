"""Are greedy tokens those of vLLM without speculation, where drafts are accepted and others are
not?

A small target in 32 bits whose text goes in circles; drafts of n-grams and of a head, by vLLM's
fixed length, by the plugin, and with vLLM's adaptive verification. Answers of `off` are kept in a
file for the jobs after it.
"""

import json
from pathlib import Path

from lib.gpu import models
from lib.gpu.engine import LOOKUP, make_core
from lib.gpu.measuring import OFF, OURS, Measuring
from lib.gpu.plan import Plan
from lib.gpu.results import Results

REQUESTS, PROMPT, TOKENS = 8, 60, 96
LEVELS = (1, 2, 4, 8)
OPTIONS = {
    "load_format": "auto",
    "dtype": "float32",
    "kv_cache_memory_bytes": 2 << 30,
    "max_num_seqs": REQUESTS,
    "max_model_len": 1024,
}


def prompts() -> list[list[int]]:
    import numpy as np

    rng = np.random.default_rng(3)
    return [rng.integers(10, models.VOCABULARY, PROMPT).tolist() for _ in range(REQUESTS)]


def small_models(plan: Plan) -> tuple[str, str]:
    """Folders of the target and of its head."""
    folder = plan.folder / "models"
    if not (folder / "repeating" / "model.safetensors").exists():
        models.repeating_model(folder / "repeating", models.SMALL)
        models.repeating_head(folder / "repeating-head", folder / "repeating")
    return str(folder / "repeating"), str(folder / "repeating-head")


def run_exact(results: Results, plan: Plan, kind: str) -> None:
    """kind: off, ngram, eagle3 or adaptive. RuntimeError if an answer differs, or if no draft was
    accepted."""
    target, head = small_models(plan)
    kept = plan.folder / "answers.json"
    sizes = plan.sizes(LEVELS)
    if kind == OFF:
        speculation, policies = None, (OFF,)
    else:
        speculation = {"num_speculative_tokens": plan.longest} | (
            dict(LOOKUP) if kind == "ngram" else {"method": "eagle3", "model": head}
        )
        policies = ("fixed:3", OURS)
        if kind == "adaptive":
            speculation["enable_adaptive_verification"] = True
            policies = ("stock", OURS)
        else:
            speculation["num_speculative_tokens_per_batch_size"] = plan.table(REQUESTS)
    core = make_core(
        results, plan, target, sizes, speculation, OURS if OURS in policies else None, **OPTIONS
    )
    measuring = Measuring(results, plan, core)
    for policy in policies:
        measuring.use(policy)
        measuring.counting.clear()
        answers = measuring.client.answers(prompts(), TOKENS)
        if kind == OFF:
            kept.write_text(json.dumps(answers))
        check(results, plan, kept, kind, policy, answers, measuring.counting)


def check(
    results: Results, plan: Plan, kept: Path, kind: str, policy: str, answers: list, counting
) -> None:
    plain = json.loads(kept.read_text())
    steps = counting.steps
    accepted, verified = (
        sum(step.told - step.sampled for step in steps),
        sum(step.verified for step in steps),
    )
    places = [first_difference(a, b) for a, b in zip(plain, answers, strict=True)]
    results.add(
        exact=kind, policy=policy, equal=places.count(None), of=len(places),
        first_difference=places, steps=len(steps), verified=verified, accepted=accepted,
        full=sum(step.graph == "full" for step in steps) / max(len(steps), 1),
        lengths=counting.figures(1.0)["lengths"], distinct=[len(set(answer)) for answer in answers],
    )  # fmt: skip
    if plan.emulates:
        return
    if places.count(None) < len(places):
        raise RuntimeError(
            f"{kind}, {policy}: answers differ from those without speculation: {places}"
        )
    if kind != OFF and policy != OURS and not accepted:
        raise RuntimeError(
            f"{kind}, {policy}: no draft was accepted, so the comparison says nothing"
        )


def first_difference(a: list[int], b: list[int]) -> int | None:
    if a == b:
        return None
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
