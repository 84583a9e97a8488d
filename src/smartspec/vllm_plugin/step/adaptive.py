"""The scheduler's half of vLLM's adaptive verification (the workers' half is in executor.py).

vLLM's workers verify the likeliest draft tokens of a batch, as many as make most tokens per second
by their tables of step times. The scheduler decides how many tokens are drafted at all. It sends
our step times, corrected by each step, in place of the tables that vLLM profiled at the start. The
workers say in each output how many draft tokens of each request they have verified.

Two attributes travel: `smartspec_costs` of vLLM's SchedulerOutput, which our executor takes off,
and `smartspec_admitted` of its ModelRunnerOutput, which our functions in the workers put there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from smartspec.control import BatchView, DrafterView, LatencyModel

COSTS, ADMITTED = "smartspec_costs", "smartspec_admitted"
COSTS_SPACING = 128  # steps between two messages: a table takes the workers about a millisecond


@dataclass(frozen=True)
class CostCurves:
    """The arguments of AdaptiveVerificationManager.set_cost_curves, in milliseconds."""

    draft: tuple[tuple[int, float], ...]  # of a step's drafts, by its requests
    verify: tuple[tuple[int, float], ...]  # of its other parts, by the tokens that it feeds


def token_sizes(vllm_config) -> tuple[int, ...]:
    """Return the numbers of fed tokens for which costs are sent: sizes with captured graphs, to
    which smaller steps are padded, and doubled ones up to the largest step."""
    largest = vllm_config.scheduler_config.max_num_batched_tokens
    sizes = sorted(vllm_config.compilation_config.cudagraph_capture_sizes or (1,))
    while sizes[-1] < largest:
        sizes.append(min(2 * sizes[-1], largest))
    return tuple(size for size in sizes if size <= largest)


def cost_curves(
    latency: LatencyModel, view: BatchView, depth: int, sizes: Sequence[int], max_rows: int
) -> CostCurves:
    """Return times at the mean context of this batch, which has rows. depth: draft tokens made for
    a request. max_rows: the most requests of a step. Fewer tokens than rows are rows without
    drafts."""
    rows, context = view.num_rows, view.total_context_tokens // view.num_rows
    more = np.array([size - rows for size in sizes if size > rows], dtype=np.int64)
    fewer = [
        (size, latency.off_seconds(_batch(size, context, 0))) for size in sizes if size <= rows
    ]
    seconds = latency.target_seconds(_batch(rows, context, 0), more) if len(more) else more
    verify = [
        *fewer,
        *zip((more + rows).tolist(), np.asarray(seconds, dtype=float).tolist(), strict=True),
    ]
    counts = [size for size in sizes if size < max_rows] + [max_rows]
    draft = [
        (count, _draft_seconds(latency, _batch(count, context, depth), depth)) for count in counts
    ]
    return CostCurves(_milliseconds(draft), _milliseconds(verify))


def verified_by_request(model_output, scheduled: Mapping[str, int]) -> dict[str, int]:
    """Return the number of draft tokens that the workers have verified, by request. scheduled: the
    most of each. ValueError where the output has no such numbers, or impossible ones."""
    admitted = getattr(model_output, ADMITTED, None)
    rows = model_output.req_id_to_index
    if admitted is None or len(admitted) != len(rows):
        raise ValueError(
            f"vLLM's workers do not say which draft tokens they verified ({ADMITTED} is {admitted})"
        )
    verified = {name: admitted[rows[name]] for name in scheduled}
    if any(not 0 <= n <= scheduled[name] for name, n in verified.items()):
        raise ValueError(f"vLLM's workers verified {verified} of {dict(scheduled)} draft tokens")
    return verified


def _batch(rows: int, context: int, depth: int) -> BatchView:
    lengths = np.full(rows, depth)
    return BatchView(
        np.arange(rows), np.full(rows, context), lengths, drafters=(DrafterView(lengths),)
    )


def _draft_seconds(latency: LatencyModel, view: BatchView, depth: int) -> float:
    drafter = np.zeros(view.num_rows, dtype=np.int64)
    return float(latency.draft_seconds(view, drafter, depth)[0, depth])


def _milliseconds(curve: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    return tuple((size, 1e3 * seconds) for size, seconds in curve)
