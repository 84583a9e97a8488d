"""Latency against rate: the paper's figure, below, at and above what vLLM serves without
speculation."""

from dataclasses import replace

from lib.gpu.client import LONGEST, SHORTEST
from lib.gpu.engine import make_core
from lib.gpu.jobs import eagle3, stated, target
from lib.gpu.measuring import OFF, OURS, Measuring
from lib.gpu.plan import MAX_SEQS, MIXED, Plan
from lib.gpu.results import Results

LENGTHS = (1, 3)
# of the closed loop that finds the capacity: answers take some seconds there
FULL_SECONDS, FULL_RAMP = 6.0, 2.0


def run_off(results: Results, plan: Plan) -> None:
    """Requests per second that a full batch serves, then latencies at shares of that."""
    plan = replace(
        plan, levels=(1, 16, MAX_SEQS), lengths=LENGTHS, seconds=FULL_SECONDS, ramp=FULL_RAMP
    )
    measuring = Measuring(results, plan, make_core(results, plan, target(plan), plan.open_sizes()))
    measuring.warm_up()
    capacity = measuring.cell(MAX_SEQS, OFF) / ((SHORTEST + LONGEST) / 2)
    if not capacity:
        raise RuntimeError("the full batch was not measured: its problem stands before this line")
    results.add(capacity=capacity)
    for share in plan.shares:
        measuring.latency(share * capacity, OFF)


def run_policies(results: Results, plan: Plan) -> None:
    """An EAGLE-3 head: one token, three tokens and SmartSpec at the same rates."""
    capacity = results.last("capacity")
    if capacity is None:
        raise ValueError(
            "vLLM's capacity without drafts is not known: run job rates-off first, with this $OUT"
        )
    plan = replace(plan, levels=(1, 16, MAX_SEQS), lengths=LENGTHS)
    acceptance = stated()
    speculation = eagle3(plan, num_speculative_tokens_per_batch_size=plan.table())
    core = make_core(results, plan, target(plan), plan.open_sizes(), speculation, policy=OURS)
    measuring = Measuring(results, plan, core, acceptance)
    measuring.use(f"stock:{max(LENGTHS)}")
    measuring.warm_up()
    for share in plan.shares:
        for policy in (*(f"stock:{length}" for length in LENGTHS), OURS):
            measuring.latency(share * capacity, policy, MIXED)
