"""The best draft length for every batch size, on named hardware."""

import numpy as np

from smartspec.control.baselines.batch_table import BATCH_SIZES, profile_table
from smartspec.control.estimates import Estimates
from smartspec.observation.length_tables import LengthRange
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import ground_truth_time

# SGLang chooses among the lengths that are best within this of the given acceptance
ACCEPTANCE_DOUBT = 0.15


def length_table(scenario: Scenario, acceptance: float) -> list[LengthRange]:
    """Best lengths for batches of 1 to scenario.max_batch requests, by powers of two, neighbours of
    one length merged. acceptance: chance that a draft token is right, given that those before it
    are. Times are those of the scenario's hardware."""
    time = ground_truth_time(scenario)
    # only its shape is used: acceptance is given
    survival = np.zeros((1, 1, scenario.max_draft_tokens))
    lengths = profile_table(
        Estimates((scenario.drafter_spec,), survival, time), acceptance
    ).tolist()
    ranges: list[LengthRange] = []
    for first, last, length in zip(
        [1, *(BATCH_SIZES[:-1] + 1).tolist()], BATCH_SIZES.tolist(), lengths, strict=True
    ):
        if first > scenario.max_batch:
            break
        if ranges and ranges[-1].length == length:
            first = ranges.pop().first
        ranges.append(LengthRange(first, min(last, scenario.max_batch), length))
    return ranges
