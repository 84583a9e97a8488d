"""Several engines behind one router: each request goes to the engine with the fewest under way.

    python -m lab.worlds --replicas 3 --rate 60

The engines share nothing but the ground truth. What a step emits is known to the router when the
step ends.
"""

from heapq import merge

from smartspec.sim.virtual_engine import Run, VirtualEngine
from smartspec.sim.world.traffic import Traffic
from smartspec.workload.records import RequestRecord


def serve_together(engines: list[VirtualEngine], traffic: Traffic) -> list[RequestRecord]:
    """Records of all requests in order of completion. ValueError for a closed loop, in which no
    request comes by itself."""
    if traffic.concurrency is not None:
        raise ValueError("a fleet serves arrivals: give rate or trace instead of batch")
    runs, sent = [Run() for _ in engines], [0] * len(engines)
    for engine, run in zip(engines, runs, strict=True):
        engine.begin(traffic, run)
    for index, moment in enumerate(traffic.arrival_seconds.tolist()):
        for engine in engines:
            engine.advance(moment)
        loads = [count - len(run.records) for count, run in zip(sent, runs, strict=True)]
        least = loads.index(min(loads))
        engines[least].send(index, moment)
        sent[least] += 1
    for engine in engines:
        engine.advance()
    return [*merge(*(run.records for run in runs), key=_end)]


def _end(record: RequestRecord) -> float:
    return record.start_seconds + record.end_to_end_seconds
