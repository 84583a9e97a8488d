"""How long the planner takes: python benchmarks/planner.py

Prints median and 99th percentile of one planning call for 32 and 256 requests of up to 8 draft tokens, with a draft
model (every depth is scanned) and with offers (one scan), and of the controller's whole work in a step (plan, verify,
observe).
"""

import time
from collections.abc import Callable

import numpy as np

from smartspec.control.controller import Controller
from smartspec.control.latency import CostCurve, LatencyModel
from smartspec.control.planner import plan_lengths
from smartspec.control.records import BatchView, Drafted, Offers, StepFeedback, StepSeconds

MAX_DRAFT_TOKENS = 8
REPEATS = 1000


def measure(name: str, call: Callable[[], object]) -> None:
    """Time REPEATS calls after some to warm up, and print one line."""
    seconds = []
    for _ in range(REPEATS + 50):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    median, p99 = np.percentile(seconds[50:], [50, 99]) * 1e3
    print(f"{name:44s} median {median:6.3f} ms   p99 {p99:6.3f} ms")


def planning_call(num_rows: int, with_model: bool) -> Callable[[], object]:
    rng = np.random.default_rng(0)
    survival = np.cumprod(rng.uniform(0.3, 0.95, (num_rows, MAX_DRAFT_TOKENS)), axis=1)
    caps = np.full(num_rows, MAX_DRAFT_TOKENS)
    needs_depth = np.full(num_rows, with_model)
    draft_seconds = 0.002 * np.arange(MAX_DRAFT_TOKENS + 1)
    target_seconds = 0.036 + 0.0001 * np.arange(num_rows * MAX_DRAFT_TOKENS + 1)
    weights = np.ones(num_rows)
    return lambda: plan_lengths(survival, caps, weights, needs_depth, draft_seconds, target_seconds, 0.001)


def controller_call(num_rows: int, with_model: bool) -> Callable[[], object]:
    rng = np.random.default_rng(0)
    latency = LatencyModel(CostCurve.linear(0.036, 0.002), CostCurve.linear(0.004, 0.0001) if with_model else None)
    controller = Controller("goodput", MAX_DRAFT_TOKENS, latency, has_offers=True, has_model=with_model)
    offers = Offers(rng.integers(0, MAX_DRAFT_TOKENS + 1, num_rows), rng.integers(1, 12, num_rows))
    caps = np.full(num_rows, MAX_DRAFT_TOKENS)
    view = BatchView(np.arange(num_rows), np.full(num_rows, 300), caps, np.zeros(num_rows, dtype=np.int64), offers)
    unknown = np.full(num_rows, -1)

    def step() -> None:
        plan = controller.plan_draft(view)
        keep = controller.plan_verify(view, plan, Drafted(plan.lengths))
        accepted = rng.integers(0, keep + 1)
        tested = np.minimum(keep, accepted + 1)
        seconds = StepSeconds(draft=0.0, target=0.036 + 0.002 * float(num_rows + keep.sum()), host=0.001)
        controller.observe(StepFeedback(view, plan, keep, keep, tested, accepted, unknown, 0, seconds))

    return step


def main() -> None:
    for num_rows in (32, 256):
        for source, with_model in (("offers", False), ("draft model", True)):
            measure(f"planner, {num_rows} x {MAX_DRAFT_TOKENS}, {source}", planning_call(num_rows, with_model))
    for num_rows in (32, 256):
        for source, with_model in (("offers", False), ("offers and draft model", True)):
            measure(f"whole step, {num_rows} x {MAX_DRAFT_TOKENS}, {source}", controller_call(num_rows, with_model))


if __name__ == "__main__":
    main()
