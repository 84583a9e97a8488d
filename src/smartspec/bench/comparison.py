"""Several runs of the same load under different policies: as a table, the worst first."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from rich.box import SIMPLE
from rich.table import Table

from smartspec.bench.report import optional
from smartspec.workload.summary import Summary


def comparison_table(summaries: Mapping[str, Sequence[Summary]], title: str) -> Table:
    """A line for each policy, slowest mean end-to-end latency first; figures are means over the
    runs of a policy.

    summaries: the runs of each policy, one a seed. +-: standard error of the mean latency over
    seeds. met: share of the requests with a wanted time (to the first token, per output token) that
    met it.
    """
    table = Table(
        title=f"{title}; latencies in seconds",
        title_justify="left",
        box=SIMPLE,
        collapse_padding=True,
    )
    # where it is narrow, names break rather than lose letters or digits
    table.add_column("policy", overflow="fold")
    has_targets = any(run.slo_attainment is not None for runs in summaries.values() for run in runs)
    columns = ("mean", "+-", "p50", "p99", "TTFT", "tok/s", "k", "accepted")
    for column in (*columns, *["met"] * has_targets):
        table.add_column(column, justify="right", no_wrap=True)
    for policy, runs in sorted(summaries.items(), key=lambda item: -_mean_latency(item[1])):
        met = [optional(_mean([run.slo_attainment for run in runs]), ".1%")] * has_targets
        table.add_row(policy, *_row(runs), *met)
    return table


def _row(runs: Sequence[Summary]) -> list[str]:
    latencies = [run.end_to_end_seconds for run in runs if run.end_to_end_seconds is not None]
    error = (
        stdev([latency.mean for latency in latencies]) / len(latencies) ** 0.5
        if len(latencies) > 1
        else None
    )
    speculation = [run.speculation for run in runs if run.speculation]
    figures = [
        (_mean([latency.mean for latency in latencies]), ".3f"),
        (error, ".3f"),
        (_mean([latency.p50 for latency in latencies]), ".3f"),
        (_mean([latency.p99 for latency in latencies]), ".3f"),
        (_mean([run.ttft_seconds.mean for run in runs if run.ttft_seconds]), ".3f"),
        (_mean([run.output_tokens_per_second for run in runs]), ".0f"),
        (_mean([each.mean_k for each in speculation]), ".2f"),
        (_mean([each.acceptance_rate for each in speculation]), ".3f"),
    ]
    return [optional(value, spec) for value, spec in figures]


def _mean_latency(runs: Sequence[Summary]) -> float:
    mean = _mean([run.end_to_end_seconds and run.end_to_end_seconds.mean for run in runs])
    return float("inf") if mean is None else mean


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
