"""How many requests per second plain decoding can serve: the knee, around which the rates of a
figure lie."""

from collections.abc import Sequence

import numpy as np

from lab.paper.cells import CELLS, Cell, Effort
from lab.paper.points import Figure, Point, Settings, Values
from lab.paper.rate_step import MIXED, RUN, mixed_requests
from lab.paper.virtual_run import run_virtually
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import make_traffic
from smartspec.workload.records import RequestRecord

NAME = "capacity"
BATCH = 256  # as many as run at once: more wait


def capacity_figure(effort: Effort, cells: Sequence[Cell] = CELLS) -> Figure:
    """A point for every cell, and one for the mixed data of the rate steps."""
    common = {"batch": BATCH, "num_requests": effort.num_requests}
    settings = [{"cell": cell.name} | cell.scenario_of("off") | common for cell in cells]
    settings.append({"cell": MIXED} | RUN | {"policy": "off"} | common)
    return Figure(NAME, tuple(settings), measure)


def measure(settings: Settings) -> Values:
    """What off serves while as many requests are under way as fit."""
    scenario = Scenario(**{name: value for name, value in settings.items() if name != "cell"})
    is_mixed = settings["cell"] == MIXED
    run = run_virtually(
        scenario,
        mixed_requests(scenario.num_requests, BATCH) if is_mixed else make_traffic(scenario),
    )
    return {"requests_per_second": served(run.records, BATCH)}


def served(records: Sequence[RequestRecord], batch: int) -> float:
    """Requests per second that end in a closed loop, but for the first and the last batch."""
    ends = np.sort([record.start_seconds + record.end_to_end_seconds for record in records])[
        batch:-batch
    ]
    return (len(ends) - 1) / float(ends[-1] - ends[0])


def capacities(points: Sequence[Point]) -> dict[str, float]:
    """Requests per second by name of cell."""
    return {settings["cell"]: values["requests_per_second"] for settings, values in points}
