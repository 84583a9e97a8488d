"""The controller's own time of a step: measured before a run, charged in it.

Seconds measured while a run is played would make every run another, and a garbage collection or a
busy neighbour would decide. So the controller's part of a step is measured beforehand in steady
state, as a median per number of decoding requests; runs charge what that table says, and with the
same table they are the same.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter

import numpy as np

from smartspec.control import BatchView, Outcome, Plan
from smartspec.control.policy import LEARN_STEPS
from smartspec.core.engine_core import Controller
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import make_static_load
from smartspec.sim.static_load import Phase
from smartspec.sim.world.step_time import ControllerSeconds

# Rounds, so that a noisy second meets all batch sizes alike.
NUM_ROUNDS, NUM_WARM_UP_STEPS, NUM_STEPS = 4, LEARN_STEPS, 4 * LEARN_STEPS
OUTPUT_TOKENS = 160  # of a request: others take its place, as in a server


def measured_controller_seconds(
    scenario: Scenario, clock: Callable[[], float] = perf_counter
) -> ControllerSeconds:
    """The time of the scenario's policy on this machine, for 1, 2, 4, ... max_batch requests.
    clock: with time.thread_time, the time of other programs on a busy machine does not count."""
    sizes = [2**i for i in range(scenario.max_batch.bit_length()) if 2**i < scenario.max_batch] + [
        scenario.max_batch
    ]
    load, timed = make_static_load(scenario, scenario.served_drafter)
    controller = TimedController(timed, clock)
    num_steps = NUM_WARM_UP_STEPS + NUM_STEPS
    classes = tuple(range(len(load.acceptance.classes)))
    phases = [
        Phase(
            num_steps, size, classes, scenario.prompt_tokens, OUTPUT_TOKENS, tagged=scenario.tagged
        )
        for size in sizes
    ]
    load.run(controller, phases * NUM_ROUNDS)
    seconds = np.array(controller.step_seconds[:-1]).reshape(NUM_ROUNDS, len(sizes), num_steps)
    groups = seconds[:, :, NUM_WARM_UP_STEPS:].reshape(NUM_ROUNDS, len(sizes), -1, LEARN_STEPS)
    medians = np.median(groups.mean(axis=3), axis=(0, 2))  # learning comes once in so many steps
    return tuple(zip(sizes, medians.tolist(), strict=True))


class TimedController:
    """A controller and, step by step, the seconds spent in it, those of its stop rules included."""

    def __init__(self, controller: Controller, clock: Callable[[], float] = perf_counter):
        self._clock = clock
        self.step_seconds = [0.0]
        self.end = controller.end
        self.cut = partial(self._timed, controller.cut)
        self._controller = controller

    def plan(self, view: BatchView) -> Plan:
        plan = self._timed(self._controller.plan, view)
        return plan if plan.stop is None else replace(plan, stop=partial(self._timed, plan.stop))

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        self._timed(self._controller.learn, plan, outcome)
        self.step_seconds.append(0.0)

    def _timed(self, function: Callable, *arguments):
        began = self._clock()
        result = function(*arguments)
        self.step_seconds[-1] += self._clock() - began
        return result
