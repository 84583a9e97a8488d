"""Figures of one run from the records of its requests."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from smartspec.workload.records import RequestRecord, SpeculationCounters


@dataclass(frozen=True)
class Distribution:
    """Mean and percentiles (linear interpolation) in the unit of the values."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class SpeculationSummary:
    """Speculation over the run (of everything the server did meanwhile, other clients included).

    acceptance_rate: accepted / verified draft tokens, None if none were verified.
    mean_k: verified draft tokens per decoding request and step, None if there was no such step.
    """

    counters: SpeculationCounters
    acceptance_rate: float | None
    mean_k: float | None


@dataclass(frozen=True)
class Summary:
    """Latencies and rates count the requests that completed. duration_seconds: first start to last
    end. slo_attainment: share of the requests with a wanted time (to the first token, per output
    token) that met it. num_refusals: answers that said to come back later. num_at_once: answers
    whose text came at once, not as a stream.
    """

    num_completed: int
    num_errors: int
    num_unfinished: int
    num_without_usage: int
    errors: dict[str, int]
    duration_seconds: float
    num_prompt_tokens: int
    num_output_tokens: int
    output_tokens_per_second: float
    requests_per_second: float
    ttft_seconds: Distribution | None
    tpot_seconds: Distribution | None
    end_to_end_seconds: Distribution | None
    speculation: SpeculationSummary | None = None
    slo_attainment: float | None = None
    num_refusals: int = 0
    num_at_once: int = 0


def distribution(values: Iterable[float | None]) -> Distribution | None:
    """Distribution of the values that are not None; None if there are none."""
    array = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(array):
        return None
    p50, p90, p99 = np.percentile(array, [50, 90, 99]).tolist()
    return Distribution(float(array.mean()), p50, p90, p99)


def summarize(
    records: Sequence[RequestRecord],
    *,
    num_unfinished: int = 0,
    speculation: SpeculationSummary | None = None,
) -> Summary:
    """Summary of a run. num_unfinished: its requests without a record, because it was
    interrupted."""
    completed = [record for record in records if record.error is None]
    errors = Counter(record.error for record in records if record.error is not None)
    duration = _duration(records)
    num_output_tokens = sum(record.num_output_tokens for record in completed)
    return Summary(
        num_completed=len(completed),
        num_errors=errors.total(),
        num_unfinished=num_unfinished,
        num_without_usage=sum(not record.has_usage for record in completed),
        errors=dict(errors.most_common()),
        duration_seconds=duration,
        num_prompt_tokens=sum(record.num_prompt_tokens for record in completed),
        num_output_tokens=num_output_tokens,
        output_tokens_per_second=num_output_tokens / duration if duration else 0.0,
        requests_per_second=len(completed) / duration if duration else 0.0,
        ttft_seconds=distribution(record.ttft_seconds for record in completed),
        tpot_seconds=distribution(record.tpot_seconds for record in completed),
        end_to_end_seconds=distribution(record.end_to_end_seconds for record in completed),
        speculation=speculation,
        slo_attainment=_attainment(completed),
        num_refusals=sum(record.num_refusals for record in records),
        num_at_once=sum(record.ttft_seconds is None and bool(record.text) for record in completed),
    )


def _attainment(records: Sequence[RequestRecord]) -> float | None:
    met = [record.met_target for record in records if record.met_target is not None]
    return sum(met) / len(met) if met else None


def summarize_speculation(
    before: SpeculationCounters | None, after: SpeculationCounters | None
) -> SpeculationSummary | None:
    """The counters' growth between two readings; None if either is missing or the server restarted
    in between."""
    if before is None or after is None:
        return None
    growth = {name: getattr(after, name) - value for name, value in vars(before).items()}
    if min(growth.values()) < 0:
        return None
    counters = SpeculationCounters(**growth)
    num_verified, num_rows = counters.num_verified_tokens, counters.num_decode_rows
    return SpeculationSummary(
        counters,
        acceptance_rate=counters.num_accepted_tokens / num_verified if num_verified else None,
        mean_k=num_verified / num_rows if num_rows else None,
    )


def _duration(records: Sequence[RequestRecord]) -> float:
    if not records:
        return 0.0
    first_start = min(record.start_seconds for record in records)
    return max(record.start_seconds + record.end_to_end_seconds for record in records) - first_start
