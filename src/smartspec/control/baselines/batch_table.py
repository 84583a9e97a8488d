"""A table of lengths by batch size (Su, Giannoula and Pekhimenko, "The Synergy of Speculative
Decoding and Batching in Serving LLMs", arXiv 2310.18813)."""

import numpy as np

from smartspec.control.baselines.profiling_run import read_best_lengths
from smartspec.control.estimates import Estimates
from smartspec.control.planning import plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, DrafterView, Plan

BATCH_SIZES = 2 ** np.arange(11)  # 1 to 1024
PROFILE_CONTEXT_TOKENS = 512  # of every request while profiling
PROFILE_ACCEPTANCE = 0.7


class BatchTable(Policy):
    """One length for the whole batch, looked up by the number of decoding requests, rounded up to a
    measured one. 0 is a candidate, so that the table may turn speculation off.

    As published, the table is made once and never changed. profile: a number, the acceptance of the
    profiling prompts, or the path of a profiling run (see profiling_run). With the path nothing is
    assumed. With the number, models replace two measurements. Times come from the profile of the
    first step, at 512 tokens of context per request. Tokens per position come from that acceptance
    (geometric).
    """

    def __init__(self, profile: float | str = PROFILE_ACCEPTANCE):
        self._acceptance: float | None = None
        if isinstance(profile, str):
            self._sizes, self._lengths = read_best_lengths(profile)
        else:
            self._acceptance = profile
            self._sizes, self._lengths = BATCH_SIZES, np.zeros(0, dtype=np.int64)

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        if self._acceptance is not None and not len(self._lengths):
            self._lengths = profile_table(estimates, self._acceptance)
        index = min(int(np.searchsorted(self._sizes, view.num_rows)), len(self._sizes) - 1)
        return plan_of_lengths(view, estimates, int(self._lengths[index]))


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
        max_draft_tokens=np.full(num_rows, context_tokens),
        drafters=(DrafterView(np.full(num_rows, context_tokens)),) * num_drafters,
    )
