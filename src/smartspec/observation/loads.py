"""The loads that were seen, as they were measured."""

from collections import Counter
from dataclasses import dataclass
from math import sqrt

from smartspec.observation.acceptance import ALIKE_STEPS, accepted_moments
from smartspec.observation.records import Observation, total
from smartspec.observation.step_times import STALL_STEPS

LEAST_SHARE = 0.01  # of the time at a load: loads that were rarer are not shown


@dataclass(frozen=True)
class Load:
    """A level of requests at a time."""

    requests: float
    share: float  # of the time of all steps
    tokens_per_second: float
    lengths: Counter[int]  # steps by draft length
    accepted: float  # draft tokens of a request in a step
    # relative standard deviations of the measured seconds and of accepted
    doubt: tuple[float, float]


def loads_of(observation: Observation) -> list[Load]:
    """The loads with LEAST_SHARE of the time or more, the smallest first. ValueError where none
    emitted tokens."""
    _, spread = accepted_moments(observation.outcomes)
    seconds = total(observation.cells.values())["seconds"]
    loads = []
    for cells in observation.by_level.values():
        sums = total(cells.values())
        if sums["seconds"] < LEAST_SHARE * seconds or not sums["emitted_tokens"]:
            continue
        lengths: Counter[int] = Counter()
        for (_, length, _), cell in cells.items():
            lengths[length] += int(cell[0])
        steps, rows = sums["steps"], max(sums["decoding"], 1.0)
        variance = max(sums["squares"] * steps / sums["seconds"] ** 2 - 1.0, 0.0)
        accepted = max(sums["emitted_tokens"] - rows - sums["prefills"], 0.0) / rows
        of_accepted = sqrt(spread * ALIKE_STEPS / rows) / accepted if accepted else 0.0
        loads.append(
            Load(
                requests=sums["requests"] / steps,
                share=sums["seconds"] / seconds,
                tokens_per_second=sums["emitted_tokens"] / sums["seconds"],
                lengths=lengths,
                accepted=accepted,
                doubt=(sqrt(variance * STALL_STEPS / steps), of_accepted),
            )
        )
    if not loads:
        raise ValueError(f"no load emitted tokens in {LEAST_SHARE:.0%} of the time: send requests")
    return loads
