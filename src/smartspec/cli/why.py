"""`smartspec log why`: why a request's drafts were as long as they were, in words, from a decision
log."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

from typer import Argument

if TYPE_CHECKING:
    from smartspec.control.log.decision import DecisionRecord, LogHeader
    from smartspec.sim.replay.decisions import Decision

MAX_LISTED = 40  # requests, and lines of one
LEGEND = """steps: of the server, from 1. requests: how many decoded in these steps. draft: its length and its drafter.
tokens/s: predicted for all requests together; in brackets: without drafts.
A draft token pays if the tokens that it brings are worth the time to verify it."""  # noqa: E501


def why(
    log: Annotated[Path, Argument(help="A log that `smartspec serve --decision-log` has written.")],
    request: Annotated[
        int | None,
        Argument(help="Its number, in the answer with `speculation.report` (default: list all)."),
    ] = None,
) -> None:
    """Tell which draft lengths were chosen for a request and why, or list the requests of a log."""
    from smartspec.control.log.recorded_log import RecordedLog
    from smartspec.sim.replay.decisions import decisions_of

    recorded = RecordedLog(log)
    if request is None:
        _list_requests(recorded)
    else:
        decisions = list(decisions_of(recorded, recorded.header, request))
        if not decisions:
            raise ValueError(
                f"{log}: no step decoded request {request}: `smartspec log why {log}` lists those "
                "it has"
            )
        _explain(recorded.header, request, decisions)
    if recorded.notice:
        print(f"{log}: {recorded.notice}")


def _explain(header: "LogHeader", request: int, decisions: list["Decision"]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console()
    verified, accepted = (
        sum(getattr(each, name) for each in decisions) for name in ("verified", "accepted")
    )
    console.print(
        f"Request {request}, policy {header.policy}: {len(decisions)} decoding steps, "
        f"{len(decisions) + accepted} tokens; of {verified} verified draft tokens {accepted} were "
        "accepted.",
        highlight=False,
    )
    for name, some in _by_drafter(decisions):
        lengths = sorted(each.length for each in some)
        print(
            f"  {name}: in {len(some)} steps, {lengths[0]} to {lengths[-1]} tokens; expected "
            f"{sum(each.expected for each in some):.0f} of them, accepted "
            f"{sum(each.accepted for each in some)}"
        )
    table = Table("steps", "requests", "draft", "accepted", "tokens/s", "why", box=SIMPLE)
    lines = list(_lines(header.policy, decisions))
    for line in lines[-MAX_LISTED:]:
        table.add_row(*line)
    if len(lines) > MAX_LISTED:
        print(
            f"The last {MAX_LISTED} of {len(lines)} lines; steps in a row with the same decision "
            "share one:"
        )
    console.print(table)
    print(LEGEND)


def _by_drafter(decisions: list["Decision"]) -> list[tuple[str, list["Decision"]]]:
    drafted = sorted((each for each in decisions if each.length), key=lambda each: each.drafter)
    return [(name, list(some)) for name, some in groupby(drafted, key=lambda each: each.drafter)]


def _lines(policy: str, decisions: list["Decision"]) -> Iterator[tuple[str, ...]]:
    """A line of the table for steps in a row with the same decision."""
    for (length, drafter, reason), spell in groupby(
        decisions, key=lambda d: (d.length, d.drafter, d.why(policy))
    ):
        some = list(spell)
        first, last = some[0].step, some[-1].step
        yield (
            f"{first}" if first == last else f"{first}-{last}",
            _span([each.num_rows for each in some]),
            f"{length} by {drafter}" if length else "none",
            f"{sum(each.accepted for each in some)} of {sum(each.verified for each in some)}",
            f"{fmean(each.goodput for each in some):.0f} "
            f"({fmean(each.off_goodput for each in some):.0f})",
            reason,
        )


def _list_requests(records: "Iterable[DecisionRecord]") -> None:
    from rich.console import Console
    from rich.table import Table

    totals: dict[int, list[int]] = {}
    for record in records:
        columns = record.view.request_ids, record.outcome.verified, record.outcome.accepted
        for request, verified, accepted in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            counts = totals.setdefault(request, [0, 0, 0])
            counts[:] = counts[0] + 1, counts[1] + verified, counts[2] + accepted
    table = Table("request", "steps", "tokens", "verified", "accepted", "tokens/step")
    for request, (steps, verified, accepted) in list(totals.items())[-MAX_LISTED:]:
        tokens = steps + accepted
        table.add_row(
            *map(str, (request, steps, tokens, verified, accepted)), f"{tokens / steps:.2f}"
        )
    print(
        f"{len(totals)} requests"
        + (f", the last {MAX_LISTED}:" if len(totals) > MAX_LISTED else "")
    )
    Console().print(table)


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low}-{high}"
