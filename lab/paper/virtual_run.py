"""One simulated run: of a scenario, with its own traffic or another, and with every step's decision
record."""

from collections.abc import Callable

from smartspec.control.log.decision import DecisionRecord
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import make_engine, make_traffic
from smartspec.sim.virtual_engine import Run
from smartspec.sim.world.traffic import Traffic


def run_virtually(
    scenario: Scenario,
    traffic: Traffic | None = None,
    on_record: Callable[[DecisionRecord], None] | None = None,
    on_finished: Callable[[Run], None] = lambda run: None,
) -> Run:
    """The whole run. on_finished: called with it, as it is then, each time that requests have
    ended. KeyboardInterrupt goes through: half a run is no point of a figure. Records make a run
    several times slower."""
    engine, run = make_engine(scenario), Run()
    engine.core.controller.on_record = on_record
    engine.serve(make_traffic(scenario) if traffic is None else traffic, run, on_finished)
    return run


def latencies_of(run: Run) -> list[float]:
    """Seconds from arrival to last token, in the order of arrival."""
    ended = sorted((int(record.prompt_id), record.end_to_end_seconds) for record in run.records)
    return [round(seconds, 5) for _, seconds in ended]
