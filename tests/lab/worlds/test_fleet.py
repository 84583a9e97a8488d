"""Engines behind one router: they share the load, and the router knows a step when it has ended."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from lab.worlds.__main__ import app
from lab.worlds.fleet import serve_together
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import make_engine, make_traffic, simulate
from smartspec.sim.world.traffic import Traffic

BUSY = Scenario(
    rate=400.0,
    num_requests=60,
    output_tokens=30,
    prompt_tokens=100,
    policy="off",
    drafter="lookup",
    jitter=0.0,
)


def seconds_of(records):
    return {int(record.prompt_id): record.end_to_end_seconds for record in records}


def test_one_engine_of_a_fleet_serves_as_one_alone():
    scenario = replace(BUSY, policy="fixed:4", jitter=0.1)
    records = serve_together([make_engine(scenario)], make_traffic(scenario))
    assert records == simulate(scenario).run.records


def test_engines_share_the_load():
    one = seconds_of(simulate(BUSY).run.records)
    three = seconds_of(serve_together([make_engine(BUSY) for _ in range(3)], make_traffic(BUSY)))
    assert one.keys() == three.keys()
    assert np.mean([*three.values()]) < np.mean([*one.values()])


def test_a_step_is_known_to_the_router_only_when_it_ends():
    """The last request comes just before engine 1 ends its step, so both look equally loaded, and
    it waits at 0."""
    engines = [make_engine(BUSY) for _ in range(2)]
    for engine in engines:  # a pass takes 10 ms and 1 ms a token, its host 2 ms
        engine.executor.time = replace(
            engine.executor.time, target=CostCurve.linear(0.010, 0.001), host_seconds=0.002
        )
    arrivals = np.array([0.0, 0.001, 0.010, 0.0325])
    traffic = Traffic(np.full(4, 20), np.ones(4, int), np.zeros(4, int), arrivals)
    seconds = seconds_of(serve_together(engines, traffic))
    assert seconds[2] == pytest.approx(0.064 - 0.010)
    assert seconds[3] == pytest.approx(0.096 - 0.0325)


def test_a_closed_loop_is_refused():
    scenario = replace(BUSY, rate=None, batch=4)
    with pytest.raises(ValueError, match="give rate or trace instead of batch"):
        serve_together([make_engine(scenario)], make_traffic(scenario))


def test_the_command_prints_a_line_for_each_policy():
    arguments = ["--replicas", "2", "--num-requests", "5", "--policy", "off,fixed:2"]
    output = CliRunner().invoke(app, arguments, catch_exceptions=False).output
    assert [line.split()[0] for line in output.splitlines()] == ["off", "fixed:2"]
