"""The best draft length for every batch size, on named hardware."""

import numpy as np

from smartspec.control import BatchView, DrafterView, Estimates
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import ground_truth_time

# SGLang chooses among the lengths that are best within this of the given acceptance
ACCEPTANCE_DOUBT = 0.15
BATCH_SIZES = 2 ** np.arange(11)  # 1 to 1024
PROFILE_CONTEXT_TOKENS = 512  # of every request


def length_table(scenario: Scenario, acceptance: float) -> list[int]:
    """Best lengths for batches of 1, 2, ... scenario.max_batch requests; those between powers of
    two have that of the next. acceptance: chance that a draft token is right, given that those
    before it are. Times are those of the scenario's hardware."""
    time = ground_truth_time(scenario)
    # only its shape is used: acceptance is given
    survival = np.zeros((1, 1, scenario.max_draft_tokens))
    best = profile_table(Estimates((scenario.drafter_spec,), survival, time), acceptance).tolist()
    largest = min(scenario.max_batch, int(BATCH_SIZES[-1]))
    return [best[(size - 1).bit_length()] for size in range(1, largest + 1)]


def profile_table(estimates: Estimates, acceptance: float) -> np.ndarray:
    """Return the best length for every one of BATCH_SIZES: int [len(BATCH_SIZES)]."""
    lengths = np.arange(estimates.max_draft_tokens + 1)
    emitted = np.cumsum(acceptance**lengths)
    table = []
    for batch_size in BATCH_SIZES.tolist():
        view = even_view(batch_size, PROFILE_CONTEXT_TOKENS, len(estimates.drafters))
        seconds = (
            estimates.latency.target_seconds(view, batch_size * lengths)
            + estimates.latency.host_seconds
        )
        for number in estimates.models[:1]:
            seconds = (
                seconds
                + estimates.latency.draft_seconds(view, np.full(batch_size, number), lengths[-1])[
                    number
                ]
            )
        table.append(best_length(emitted, seconds))
    return np.array(table)


def best_length(emitted: np.ndarray, seconds: np.ndarray) -> int:
    """Return the length 0..K of least time per token. emitted, seconds: float [K + 1], tokens of a
    request and time of a step."""
    return int(np.argmin(seconds / emitted))


def even_view(num_rows: int, context_tokens: int, num_drafters: int = 0) -> BatchView:
    """Return a decode batch of equally long requests without prefill, as an offline profile would
    run it. No draft KV lags."""
    return BatchView(
        request_ids=np.arange(num_rows),
        context_tokens=np.full(num_rows, context_tokens),
        row_caps=np.full(num_rows, context_tokens),
        drafters=(DrafterView(np.full(num_rows, context_tokens)),) * num_drafters,
    )
