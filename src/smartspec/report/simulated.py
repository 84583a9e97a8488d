"""A run in virtual time. A workload is a mean acceptance of draft tokens; a repetition is a
seed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from smartspec.report.folder import Measured
from smartspec.report.matrix import Cell, Matrix, Run, Variant
from smartspec.sim.controller_time import measured_controller_seconds
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import ground_truth_acceptance, simulate
from smartspec.sim.world.step_time import ControllerSeconds

PREFIX = "acceptance "
MANY_BATCHES = 4  # requests of a run in a closed loop, in units of its concurrency
LEAST_REQUESTS = 32


@dataclass(frozen=True)
class SimulatedRuns:
    """Plays runs. settings: of the scenarios. controller_seconds: what each variant is charged for
    its own time."""

    matrix: Matrix
    settings: Mapping[str, object]
    controller_seconds: Mapping[str, ControllerSeconds]

    def __call__(self, run: Run) -> Measured:
        """KeyboardInterrupt on Ctrl-C: the run is then as if never begun."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        variant = next(variant for variant in self.matrix.variants if variant.name == run.variant)
        charged = self.controller_seconds.get(run.variant, ())
        scenario = scenario_of(self.matrix, self.settings, run.cell, variant)
        result = simulate(
            replace(scenario, seed=self.matrix.seed + run.repetition, controller_seconds=charged)
        )
        if result.is_interrupted:
            raise KeyboardInterrupt
        failure = None
        if result.summary.errors:
            first, *_ = result.summary.errors
            failure = f"{result.summary.num_errors} requests failed: {first}"
        counters = result.summary.speculation.counters if result.summary.speculation else None
        return Measured(run.key, started, tuple(result.run.records), counters, failure)


def scenario_of(
    matrix: Matrix, settings: Mapping[str, object], cell: Cell, variant: Variant
) -> Scenario:
    """Raises ValueError for settings that do not go together, and for loads that the simulator has
    not."""
    load = cell.load
    if load.steps or load.cv != 1:
        raise ValueError(
            f"the simulator has no load {load.name!r}: leave --cv and --steps out with --simulate"
        )
    if load.concurrency is not None:
        count = matrix.requests or max(LEAST_REQUESTS, MANY_BATCHES * load.concurrency)
        arrivals = {"batch": load.concurrency, "num_requests": count}
    else:
        arrivals = {
            "rate": load.rate,
            "trace": load.trace,
            "time_scale": load.time_scale,
            "seconds": matrix.seconds,
        }
    acceptance = cell.workload.removeprefix(PREFIX)
    drafter = {} if variant.drafters in (None, "none") else {"drafter": variant.drafters}
    common = {"acceptance": acceptance, "seed": matrix.seed, **drafter, **settings}
    return Scenario(policy=variant.policy, **common, **arrivals)


def check_scenarios(matrix: Matrix, settings: Mapping[str, object]) -> None:
    """ValueError for settings that a run would be refused for."""
    for cell in matrix.cells:
        for variant in matrix.variants:
            ground_truth_acceptance(scenario_of(matrix, settings, cell, variant))


def simulated_runs(
    matrix: Matrix, settings: Mapping[str, object], is_charged: bool
) -> SimulatedRuns:
    """is_charged: for the controller's own time, which is measured first and takes seconds for each
    variant."""
    charged = {}
    if is_charged:
        first = matrix.cells[0]
        scenarios = {
            variant.name: scenario_of(matrix, settings, first, variant)
            for variant in matrix.variants
        }
        charged = {
            name: measured_controller_seconds(scenario) for name, scenario in scenarios.items()
        }
    return SimulatedRuns(matrix, settings, charged)
