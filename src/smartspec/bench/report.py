"""A run's progress and figures as tables for people, and as JSON for programs."""

import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from smartspec.workload.records import RequestRecord
from smartspec.workload.summary import Distribution, Summary


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[RequestRecord], None]]:
    """A bar on standard error while the block runs; yields the function that moves it on by one
    record."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[failed]} failed"),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as progress:
        task_id = progress.add_task("requests", total=total, failed=0)

        def on_record(record: RequestRecord) -> None:
            failed = progress.tasks[0].fields["failed"] + (record.error is not None)
            progress.update(task_id, advance=1, failed=failed)

        yield on_record


def latency_table(summary: Summary) -> Table:
    table = Table("milliseconds", title="Latency", title_justify="left")
    for column in ("mean", "p50", "p90", "p99"):
        table.add_column(column, justify="right")
    table.add_row("time to first token (TTFT)", *_milliseconds(summary.ttft_seconds))
    table.add_row("time per output token (TPOT)", *_milliseconds(summary.tpot_seconds))
    table.add_row("end to end", *_milliseconds(summary.end_to_end_seconds))
    return table


def throughput_table(summary: Summary) -> Table:
    """Throughput, speculation where the server tells, and whatever went wrong."""
    table = Table("figure", title="Run", title_justify="left")
    table.add_column("value", justify="right")
    table.add_row("requests completed", str(summary.num_completed))
    if summary.num_errors:
        table.add_row("[red]requests failed[/red]", f"[red]{summary.num_errors}[/red]")
    if summary.num_unfinished:
        table.add_row(
            "[yellow]requests not finished[/yellow]", f"[yellow]{summary.num_unfinished}[/yellow]"
        )
    table.add_row("duration, s", f"{summary.duration_seconds:.2f}")
    table.add_row("prompt tokens", str(summary.num_prompt_tokens))
    table.add_row("output tokens", str(summary.num_output_tokens))
    table.add_row("output tokens/s", f"{summary.output_tokens_per_second:.1f}")
    table.add_row("requests/s", f"{summary.requests_per_second:.3f}")
    if summary.slo_attainment is not None:
        table.add_row("objectives met", f"{summary.slo_attainment:.1%}")
    if summary.speculation is not None:
        table.add_row(
            "acceptance (accepted / verified)", optional(summary.speculation.acceptance_rate, ".3f")
        )
        table.add_row(
            "mean k (verified / request and step)", optional(summary.speculation.mean_k, ".2f")
        )
    return table


def notes(summary: Summary) -> list[str]:
    """The notes a reader needs beside the tables, a line each: every distinct error, token counts
    of our own making."""
    lines = [f"{count} x {message}" for message, count in summary.errors.items()]
    if summary.num_without_usage:
        lines.append(
            f"{summary.num_without_usage} answers came without token counts: pieces of text were "
            "counted as tokens"
        )
    if summary.num_refusals:
        lines.append(
            f"the server said {summary.num_refusals} times to come back later (429 or 503 with "
            "Retry-After): the wait counts as the request's"
        )
    if summary.num_at_once:
        lines.append(
            f"{summary.num_at_once} answers came at once, not as a stream: they have no time to "
            "first token"
        )
    return lines


def run_json(settings: dict, summary: Summary, records: Sequence[RequestRecord]) -> dict:
    """Settings, summary and one record a request, ready for json.dump."""
    requests = [asdict(record) | {"tpot_seconds": record.tpot_seconds} for record in records]
    return {"settings": settings, "summary": asdict(summary), "requests": requests}


def write_json(path: str | Path, content: dict) -> None:
    """Write a file as write_text does."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write a file whole or not at all, so that an interrupted run never leaves half of one.

    A link stays one, and the file it leads to is written; what is no file (a pipe, a device) is
    written to directly.
    """
    if _is_special(path):
        Path(path).write_text(text, encoding="utf-8")
        return
    path, partial = _final_and_partial(path)
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def check_writable(path: str | Path) -> None:
    """OSError if write_json could not write there, found out by trying: nothing else knows of every
    obstacle."""
    if _is_special(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return
    _, partial = _final_and_partial(path)
    partial.touch()
    partial.unlink()


def _is_special(path: str | Path) -> bool:
    return os.path.exists(path) and not os.path.isfile(path)


def _final_and_partial(path: str | Path) -> tuple[Path, Path]:
    final = Path(os.path.realpath(path))
    return final, final.with_name(final.name + ".partial")


def optional(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def _milliseconds(values: Distribution | None) -> list[str]:
    if values is None:
        return ["-"] * 4
    return [
        f"{seconds * 1000:.1f}" for seconds in (values.mean, values.p50, values.p90, values.p99)
    ]
