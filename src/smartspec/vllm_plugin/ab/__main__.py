"""`smartspec vllm ab URL`: the results of `--act`, from /metrics of a server of vLLM.

It needs Python alone: `python -m smartspec.vllm_plugin.ab URL` runs on any machine that reaches the
server.
"""

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

ALL, SINCE = "all", "ab_since_seconds"
SAMPLE = re.compile(r"^smartspec_(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
COLUMNS = ("requests", "pairs", "off", "SmartSpec", "ratio", "95 %", "off, all", "SmartSpec, all")


@dataclass(frozen=True)
class Row:
    """The results of an engine at a number of requests."""

    engine: str  # its number
    requests: str  # at a time, at least; "all" for all
    pairs: int  # of windows
    ratio: float  # of speeds, with speculation to without
    low: float | None  # end of the ratio's interval, None while there are too few pairs
    high: float | None
    off_speed: float  # tokens per second and request
    on_speed: float
    off_throughput: float  # tokens per second of the time with requests
    on_throughput: float


@dataclass(frozen=True)
class Report:
    """The results of a server."""

    rows: tuple[Row, ...]
    off: dict[str, str]  # by engine, the reason for which speculation is off right now
    guard_ratio: dict[str, float]  # by engine, the ratio that the guard measured last
    since: dict[str, float]  # by engine, when the oldest pair ended, in seconds of the epoch


def fetch(url: str, seconds: float = 10.0) -> str:
    """Return the metrics of a server. url: of it, or of its /metrics. ValueError says why there are
    none."""
    address = url if "://" in url else f"http://{url}"
    address = address.rstrip("/")
    address = address if address.endswith("/metrics") else f"{address.removesuffix('/v1')}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=seconds) as response:
            return response.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        raise ValueError(
            f"{address} answers {error.code} {error.reason}: is this vLLM's server?"
        ) from error
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{address} does not answer ({getattr(error, 'reason', error)})"
        ) from error


def read(text: str) -> Report:
    """Return the report of a page of metrics. ValueError where SmartSpec is not in use."""
    samples: dict[tuple[str, ...], float] = {}
    for name, labels, value in SAMPLE.findall(text):
        by_label = dict(LABEL.findall(labels))
        more = [
            by_label[label] for label in ("requests", "reason", "speculation") if label in by_label
        ]
        samples[(name, by_label.get("engine", "0"), *more)] = float(value)
    if not any(key[0] == "off" for key in samples):
        raise ValueError(
            "the server has no metrics of SmartSpec: it is not in use there, or cannot write to "
            "its cache folder (its log says which)"
        )
    rows = [_row(samples, *key[1:]) for key in samples if key[0] == "ab_pairs"]
    return Report(
        tuple(
            sorted(
                rows,
                key=lambda row: (
                    row.engine,
                    row.requests == ALL,
                    int(row.requests.replace(ALL, "0")),
                ),
            )
        ),
        {key[1]: key[2] for key, value in samples.items() if key[0] == "off" and value},
        *(
            {key[1]: value for key, value in samples.items() if key[0] == name}
            for name in ("guard_ratio", SINCE)
        ),
    )


def _row(samples: dict[tuple[str, ...], float], engine: str, requests: str) -> Row:
    low, high = (samples.get((f"ab_ratio_{end}", engine, requests)) for end in ("low", "high"))
    speeds = [
        samples[(name, engine, requests, state)]
        for name in ("ab_request_tokens_per_second", "ab_tokens_per_second")
        for state in ("off", "on")
    ]
    pairs, ratio = (
        int(samples[("ab_pairs", engine, requests)]),
        samples[("ab_ratio", engine, requests)],
    )
    return Row(engine, requests, pairs, ratio, low, high, *speeds)


def table(report: Report) -> str:
    """Return a text for people: a table for each engine, and a line for each that serves without
    drafts."""
    lines = []
    for engine in sorted({row.engine for row in report.rows}):
        rows = [row for row in report.rows if row.engine == engine]
        lines += [f"engine {engine}"] if len(rows) < len(report.rows) else []
        lines += _align([COLUMNS, *map(_cells, rows)])
        if engine in report.since:
            lines.append(
                f"Pairs since {datetime.fromtimestamp(report.since[engine], UTC):%Y-%m-%d %H:%M} "
                "UTC."
            )
    if lines:
        lines.append(
            "Speeds are tokens per second and request; under `all`, tokens per second of all "
            "requests."
        )
    for engine, reason in sorted(report.off.items()):
        lines.append(f"Engine {engine} serves without drafts now ({reason}).")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    requests = row.requests if row.requests == ALL else f"{row.requests} or more"
    interval = "" if row.low is None or row.high is None else f"{row.low:.3f} - {row.high:.3f}"
    speeds = [f"{value:.1f}" for value in (row.off_speed, row.on_speed)]
    throughputs = [f"{value:.1f}" for value in (row.off_throughput, row.on_throughput)]
    return requests, str(row.pairs), *speeds, f"{row.ratio:.3f}", interval, *throughputs


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


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
