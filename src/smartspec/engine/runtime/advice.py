"""What a profile says of drafts at a load, and what an operator may change."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smartspec.control.latency.model import LatencyModel
from smartspec.control.records import BatchView, DrafterSpec, DrafterView

DEAR = 0.9  # acceptance that drafts hardly have
MODEL_FREE = "without a model"


@dataclass(frozen=True)
class Load:
    """The profile's view of so many requests at once."""

    requests: int
    seconds: float  # of a step without drafts
    # seconds that the first draft token of every request adds to it, divided by their number
    price: float
    # by kind of drafter, acceptance of a draft token from which it pays
    pays_from: dict[str, float]


def load_of(
    latency: LatencyModel, drafters: Sequence[DrafterSpec], requests: int, context: int
) -> Load:
    """The load by the profile, at that context."""
    zeros = np.zeros(requests, dtype=np.int64)
    found = tuple(DrafterView(zeros + 1) for _ in drafters)
    view = BatchView(np.arange(requests), zeros + context, zeros + 1, found)
    plain, with_drafts = latency.target_seconds(view, np.array([0, requests])).tolist()
    passes = {
        spec.name: float(latency.draft_seconds(view, zeros + number, 1)[number, 1])
        for number, spec in enumerate(drafters)
        if spec.has_passes
    }
    if len(passes) < len(drafters):
        passes = {MODEL_FREE: 0.0} | passes
    pays_from = {name: (with_drafts - plain + seconds) / plain for name, seconds in passes.items()}
    return Load(requests, plain, (with_drafts - plain) / requests, pays_from)


def advice_on(kernels: dict[str, str], loads: Sequence[Load]) -> list[str]:
    """The changes that an operator may make, and what the policy does by itself."""
    found = [
        f"{name} runs in torch ({about.removeprefix('torch' + chr(39) + 's, because ')}): "
        "where it can, our kernel is several times as fast"
        for name, about in kernels.items()
        if about.startswith("torch's")
    ]
    for name in loads[0].pays_from if loads else ():
        dear = [load.requests for load in loads if load.pays_from[name] > DEAR]
        if dear and dear[0] == loads[0].requests:
            found.append(
                f"drafts {_kind(name)} hardly ever pay on this machine: leave them out, or use "
                "--policy off"
            )
        elif dear:
            found.append(
                f"drafts {_kind(name)} pay up to about {dear[0] // 2} requests at once; beyond, "
                "goodput makes few by itself, and a fixed length would lose"
            )
    return found


def advice_on_threads(num_threads: int, num_cores: int) -> list[str]:
    """num_cores: as the operating system counts them."""
    if num_threads > num_cores:
        return [f"{num_threads} threads share {num_cores} cores: set OMP_NUM_THREADS={num_cores}"]
    if num_threads < num_cores // 2:
        return [
            f"{num_threads} of {num_cores} cores compute: set OMP_NUM_THREADS to the number of "
            "physical cores"
        ]
    return []


def _kind(name: str) -> str:
    return name if name == MODEL_FREE else f"of {name}"
