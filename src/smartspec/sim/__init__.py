"""The engine in virtual time: the real controller, scheduler and step loop, and computed passes."""

from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import SimulationResult, simulate

__all__ = ["Scenario", "SimulationResult", "simulate"]
