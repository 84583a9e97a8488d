"""Jobs that are run by name: other drafters, the paper's micro-benchmark, and a whole batch at
once."""

import time
from dataclasses import replace

import numpy as np

from lib.gpu.engine import LOOKUP, make_core
from lib.gpu.jobs import eagle3, stated, synthetic, target
from lib.gpu.measuring import OFF, OURS, Measuring
from lib.gpu.models import DFLASH_8B, LLAMA_1B, copy_by_cycles, write_config
from lib.gpu.plan import MAX_SEQS, MIXED, Plan, Rates, named
from lib.gpu.results import Results

FORCED_LENGTHS, FORCED_LEVELS, FORCED_RATES = (1, 3, 5, 7), (1, 16, 64), (0.5, 0.7, 0.9)
# requests that are left, with graphs
TAIL = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
MEAN_TOKENS, SPREAD, LONGEST_ANSWER = 300, 0.8, 2048  # of answers: log-normal


def run_forced(results: Results, plan: Plan) -> None:
    """All requests accept a draft token with the same chance: lengths by acceptance and number of
    requests."""
    levels = tuple(level for level in FORCED_LEVELS if level in plan.levels) or plan.levels[:1]
    plan = replace(plan, lengths=FORCED_LENGTHS, levels=levels)
    measuring = _ours(results, plan, eagle3(plan))
    for rate in FORCED_RATES:
        measuring.cells(plan.levels, _all(plan), (rate, rate))


def run_draft_model(results: Results, plan: Plan) -> None:
    """A draft model in the shape of Llama-3.2-1B: each draft token is a pass of 16 layers."""
    folder = write_config(plan.folder / "models" / "llama-1b", LLAMA_1B)
    measuring = _ours(results, plan, synthetic(plan, method="draft_model", model=folder))
    measuring.cells(plan.levels, _all(plan), MIXED)


def run_block(results: Results, plan: Plan) -> None:
    """A DFlash drafter: one pass drafts all, so that length costs verification alone."""
    folder = write_config(plan.folder / "models" / "dflash-8b", DFLASH_8B, "DFlashDraftModel")
    measuring = _ours(results, plan, synthetic(plan, method="dflash", model=folder))
    measuring.cells(plan.levels, _all(plan), MIXED)


def run_copies(results: Results, plan: Plan) -> None:
    """n-gram drafts on a text that repeats by itself: the target's next token follows from the last
    one, in circles of
    32. Nothing is stated here: what is accepted is right."""
    table = plan.table()
    speculation = {
        "num_speculative_tokens": plan.longest,
        "num_speculative_tokens_per_batch_size": table,
    } | LOOKUP
    core = make_core(results, plan, target(plan), plan.sizes(), speculation, policy=OURS)
    if not plan.emulates:
        core.collective_rpc("apply_model", args=(copy_by_cycles,))
    measuring = Measuring(results, plan, core)
    measuring.use("stock:3")
    measuring.warm_up()
    measuring.cells(plan.levels, _all(plan))


def run_rollout(results: Results, plan: Plan, speculates: bool = True) -> None:
    """As many requests as fit at once, until the last one has ended."""
    sizes, requests = plan.sizes(TAIL), min(MAX_SEQS, max(plan.levels))
    if not speculates:
        measuring = Measuring(results, plan, make_core(results, plan, target(plan), sizes))
        measuring.warm_up()
        play(results, measuring, OFF, requests)
        return
    measuring = _ours(results, plan, eagle3(plan), sizes)
    for rates in (MIXED, (0.5, 0.5)):
        for policy in _all(plan):
            play(results, measuring, policy, requests, rates)


def play(
    results: Results, measuring: Measuring, policy: str, requests: int, rates: Rates | None = None
) -> None:
    """One batch, the same for every policy: tokens per second of all of it, and seconds to
    answers."""
    rng, client = np.random.default_rng(5), measuring.client
    mean = np.log(MEAN_TOKENS) - SPREAD**2 / 2
    lengths = (
        np.clip(rng.lognormal(mean, SPREAD, requests), 16, LONGEST_ANSWER).astype(int).tolist()
    )
    measuring.use(policy)
    measuring.state(rates)
    measuring.counting.clear()
    began, seconds = time.perf_counter(), []
    for seed, length in enumerate(lengths):
        client.send(rng.integers(10, 100_000, 128).tolist(), length, seed)
    client.done.clear()
    while client.alive:
        client.step()
        seconds += [time.perf_counter() - began] * len(client.done)
        client.done.clear()
    taken = time.perf_counter() - began
    client.drain()
    results.add(
        cell=policy, level=requests, note="" if rates is None else named(rates), at_once=True,
        tokens_per_s=sum(lengths) / taken, p50_s=float(np.median(seconds)),
        p99_s=float(np.percentile(seconds, 99)), **measuring.counting.figures(taken),
    )  # fmt: skip


def _ours(
    results: Results, plan: Plan, speculation: dict, sizes: list[int] | None = None
) -> Measuring:
    """An engine with the plugin, stated acceptance and a table of all lengths."""
    acceptance = stated()
    speculation["num_speculative_tokens_per_batch_size"] = plan.table()
    core = make_core(results, plan, target(plan), sizes or plan.sizes(), speculation, policy=OURS)
    measuring = Measuring(results, plan, core, acceptance)
    measuring.use("stock:3")
    measuring.warm_up()
    return measuring


def _all(plan: Plan) -> tuple[str, ...]:
    return plan.wanted(*(f"stock:{length}" for length in (0, *plan.lengths)), OURS)
