"""The engine in virtual time: the real controller, scheduler and step loop, and computed passes.

The names are imported when they are used: the commands read their options (sim.settings) without
numpy.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smartspec.sim.scenario import Scenario
    from smartspec.sim.simulation import SimulationResult, simulate

__all__ = ["Scenario", "SimulationResult", "simulate"]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from smartspec.sim import simulation

    return getattr(simulation, name)
