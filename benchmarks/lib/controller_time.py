"""How long a planning call takes, and all that the controller does in a step."""

import time
from collections.abc import Callable

import numpy as np

from smartspec.control.planner.lengths import StepTimes, plan_lengths
from smartspec.control.policy import LEARN_STEPS
from smartspec.sim.controller_time import TimedController
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import ground_truth_acceptance, ground_truth_time, make_controller
from smartspec.sim.static_load import Phase, StaticLoad

MAX_DRAFT_TOKENS = 8
REPEATS = 1000
POLICIES = ("goodput", "adaedl", "fixed:3", "off")
BATCHES = (1, 16, 32, 256)
NUM_STEPS, NUM_WARM_UP_STEPS = 400, 100


def measure(name: str, call: Callable[[], object]) -> None:
    """Time REPEATS calls after some to warm up, and print one line."""
    seconds = []
    for _ in range(REPEATS + 50):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    middle, p99 = np.percentile(seconds[50:], [50, 99]) * 1e3
    print(f"{name:44s} median {middle:6.3f} ms   p99 {p99:6.3f} ms", flush=True)


def planning_call(num_rows: int, with_model: bool) -> Callable[[], object]:
    rng = np.random.default_rng(0)
    survival = np.cumprod(rng.uniform(0.3, 0.95, (num_rows, MAX_DRAFT_TOKENS)), axis=1)
    caps = np.full(num_rows, MAX_DRAFT_TOKENS)
    needs_depth = np.full(num_rows, with_model)
    draft_seconds = 0.002 * np.arange(MAX_DRAFT_TOKENS + 1)
    target_seconds = 0.036 + 0.0001 * np.arange(num_rows * MAX_DRAFT_TOKENS + 1)
    weights = np.ones(num_rows)
    problem = (survival, caps, weights, needs_depth, StepTimes(draft_seconds, target_seconds, 0.001))
    return lambda: plan_lengths(*problem)


def step_seconds(policy: str, drafter: str, num_rows: int) -> float:
    """Seconds that a step spends in the controller; a third of the requests each are accepted to 0.8, 0.6 and
    0.4, which differs from token to token."""
    scenario = Scenario(policy=policy, drafter=drafter, batch=num_rows, acceptance="0.8/8/2,0.6/8/2,0.4/8/2")
    ground_truth = ground_truth_time(scenario)
    load = StaticLoad(ground_truth, ground_truth_acceptance(scenario), drafter=scenario.served_drafter)
    controller = TimedController(make_controller(scenario, ground_truth, load.true_estimates, scenario.served_drafter))
    steps = NUM_WARM_UP_STEPS + NUM_STEPS
    load.run(controller, [Phase(num_rows=num_rows, num_steps=steps, class_ids=(0, 1, 2))])
    groups = np.array(controller.step_seconds[NUM_WARM_UP_STEPS:steps]).reshape(-1, LEARN_STEPS)
    return float(np.median(groups.mean(axis=1)))  # learning comes once in so many steps


def report() -> None:
    """Print both tables."""
    for num_rows in (32, 256):
        for source, with_model in (("model-free", False), ("draft model", True)):
            measure(f"planner, {num_rows} x {MAX_DRAFT_TOKENS}, {source}", planning_call(num_rows, with_model))
    for drafter in ("model", "lookup"):
        print(f"\ncontroller, ms per step, {drafter}   " + "".join(f"batch {b:<6d}" for b in BATCHES))
        for policy in POLICIES:
            cells = [f"{1e3 * step_seconds(policy, drafter, batch):<12.2f}" for batch in BATCHES]
            print(f"{policy:36s}" + "".join(cells), flush=True)
