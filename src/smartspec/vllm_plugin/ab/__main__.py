"""`smartspec vllm ab URL`: the results of `--act`, from /metrics of a server of vLLM.

It needs numpy alone: `python -m smartspec.vllm_plugin.ab URL` runs on any machine that reaches the
server.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from smartspec.observation.report import aligned
from smartspec.vllm_plugin.metrics_page import fetch, samples

ALL = "all"
# Metrics with the label `requests`, by the state of speculation, as columns of the report.
COLUMNS = {
    ("ab_pairs", ""): "pairs",
    ("ab_ratio", ""): "ratio",
    ("ab_ratio_low", ""): "low",
    ("ab_ratio_high", ""): "high",
    ("ab_request_tokens_per_second", "off"): "off_speed",
    ("ab_request_tokens_per_second", "on"): "on_speed",
    ("ab_tokens_per_second", "off"): "off_throughput",
    ("ab_tokens_per_second", "on"): "on_throughput",
}
HEADS = ("requests", "pairs", "off", "SmartSpec", "ratio", "95 %", "off, all", "SmartSpec, all")


@dataclass(frozen=True)
class Report:
    """The results of a server."""

    # by engine and requests at a time; low, high: None while there are too few pairs
    rows: list[dict]
    off: dict[str, str]  # by engine, why speculation is off right now
    since: dict[str, float]  # by engine, when the oldest pair ended


def read(text: str) -> Report:
    """Return the report of a page of metrics. ValueError where SmartSpec is not in use."""
    rows, off, since, is_in_use = {}, {}, {}, False
    for name, label, number in samples(text):
        engine, requests = label.get("engine", "0"), label.get("requests")
        if name == "off":
            is_in_use = True
            off |= {engine: label["reason"]} if number else {}
        elif name == "ab_since_seconds":
            since[engine] = number
        elif column := COLUMNS.get((name, label.get("speculation", ""))):
            row = {"engine": engine, "requests": requests, "low": None, "high": None}
            row = rows.setdefault((engine, requests), row)
            row[column] = int(number) if column == "pairs" else number
    if not is_in_use:
        raise ValueError(
            "the server has no metrics of SmartSpec: it is not in use there, or cannot write to "
            "its cache folder (its log says which)"
        )
    return Report(sorted(rows.values(), key=_order), off, since)


def _order(row: dict) -> tuple[str, float]:
    return row["engine"], float("inf") if row["requests"] == ALL else int(row["requests"])


def table(report: Report) -> str:
    """Return a text for people: a table for each engine, and a line for each that serves without
    drafts."""
    lines = []
    for engine in sorted({row["engine"] for row in report.rows}):
        rows = [row for row in report.rows if row["engine"] == engine]
        lines += [f"engine {engine}"] if len(rows) < len(report.rows) else []
        lines += aligned([HEADS, *map(_cells, rows)])
        since = datetime.fromtimestamp(report.since[engine], UTC)
        lines.append(f"Pairs since {since:%Y-%m-%d %H:%M} UTC.")
    if lines:
        lines.append(
            "Speeds are tokens per second and request; under `all`, tokens per second of all "
            "requests."
        )
    for engine, reason in sorted(report.off.items()):
        lines.append(f"Engine {engine} serves without drafts now ({reason}).")
    return "\n".join(lines)


def _cells(row: dict) -> list[str]:
    requests = row["requests"] if row["requests"] == ALL else f"{row['requests']} or more"
    interval = "" if row["low"] is None else f"{row['low']:.3f} - {row['high']:.3f}"
    speeds, throughputs = (
        [f"{row[f'{state}_{name}']:.1f}" for state in ("off", "on")]
        for name in ("speed", "throughput")
    )
    return [requests, f"{row['pairs']}", *speeds, f"{row['ratio']:.3f}", interval, *throughputs]


def main(arguments: list[str] | None = None) -> int:
    """Print a table. Exit status: 0, 1 while there are no results, 2 where there can be none."""
    parser = argparse.ArgumentParser(prog="smartspec vllm ab", description=__doc__.splitlines()[0])
    parser.add_argument("url", metavar="URL", help="of a server, such as http://localhost:8000")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        report = read(fetch(options.url))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(asdict(report), indent=1))
    elif report.rows:
        print(table(report))
    else:
        text = (
            "no pair of windows with traffic yet: with --act there is one a minute. Without it, "
            "there will be none."
        )
        print("\n".join(filter(None, [text, table(report)])))
    return 0 if report.rows else 1


if __name__ == "__main__":
    sys.exit(main())
