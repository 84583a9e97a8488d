"""How long all that the controller does in a step takes."""

import numpy as np

from smartspec.control.policy import LEARN_STEPS
from smartspec.sim.controller_time import TimedController
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import ground_truth_acceptance, ground_truth_time, make_controller
from smartspec.sim.static_load import Phase, StaticLoad

POLICIES = ("goodput", "adaedl", "fixed:3", "off")
BATCHES = (1, 16, 32, 256)
NUM_STEPS, NUM_WARM_UP_STEPS = 400, 100


def step_seconds(policy: str, drafter: str, num_rows: int) -> float:
    """Seconds that a step spends in the controller; a third of the requests each are accepted to
    0.8, 0.6 and 0.4, which differs from token to token."""
    scenario = Scenario(
        policy=policy, drafter=drafter, batch=num_rows, acceptance="0.8/8/2,0.6/8/2,0.4/8/2"
    )
    ground_truth = ground_truth_time(scenario)
    load = StaticLoad(
        ground_truth, ground_truth_acceptance(scenario), drafter=scenario.served_drafter
    )
    controller = TimedController(
        make_controller(scenario, ground_truth, load.true_estimates, scenario.served_drafter)
    )
    steps = NUM_WARM_UP_STEPS + NUM_STEPS
    load.run(controller, [Phase(num_rows=num_rows, num_steps=steps, class_ids=(0, 1, 2))])
    groups = np.array(controller.step_seconds[NUM_WARM_UP_STEPS:steps]).reshape(-1, LEARN_STEPS)
    return float(np.median(groups.mean(axis=1)))  # learning comes once in so many steps


def report() -> None:
    """Print a table for each drafter."""
    for drafter in ("model", "lookup"):
        print(
            f"\ncontroller, ms per step, {drafter}   " + "".join(f"batch {b:<6d}" for b in BATCHES)
        )
        for policy in POLICIES:
            cells = [f"{1e3 * step_seconds(policy, drafter, batch):<12.2f}" for batch in BATCHES]
            print(f"{policy:36s}" + "".join(cells), flush=True)
