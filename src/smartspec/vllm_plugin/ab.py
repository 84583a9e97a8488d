"""`smartspec vllm ab URL`: what `--act` has found, from /metrics of a server of vLLM.

It needs Python alone: `python -m smartspec.vllm_plugin.ab URL` runs on any machine that reaches the server.
"""

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass

ALL = "all"
SAMPLE = re.compile(r"^smartspec_(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
COLUMNS = ("requests", "pairs", "off", "SmartSpec", "ratio", "95 %", "off, all", "SmartSpec, all")


@dataclass(frozen=True)
class Row:
    """engine: of the server. requests: at a time, at least; "all" for all. The speeds are tokens per second and
    request; the throughputs are tokens per second of the time with requests. low, high: of the ratio of speeds; None
    while there are too few pairs."""

    engine: str
    requests: str
    pairs: int
    ratio: float
    low: float | None
    high: float | None
    off_speed: float
    on_speed: float
    off_throughput: float
    on_throughput: float


@dataclass(frozen=True)
class Report:
    """off: why speculation is off right now, by engine. guard_ratio: that the guard measured last, by engine."""

    rows: tuple[Row, ...]
    off: dict[str, str]
    guard_ratio: dict[str, float]


def fetch(url: str, seconds: float = 10.0) -> str:
    """The metrics of a server. url: of it, or of its /metrics. ValueError says why there are none."""
    address = url if "://" in url else f"http://{url}"
    address = address.rstrip("/")
    address = address if address.endswith("/metrics") else f"{address.removesuffix('/v1')}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=seconds) as response:
            return response.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        raise ValueError(f"{address} answers {error.code} {error.reason}: is this vLLM's server?") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{address} does not answer ({getattr(error, 'reason', error)})") from error


def read(text: str) -> Report:
    """What the metrics say. ValueError where SmartSpec is not in use, or its start was without --act."""
    found: dict[tuple[str, ...], float] = {}
    for name, labels, value in SAMPLE.findall(text):
        named = dict(LABEL.findall(labels))
        more = [named[label] for label in ("requests", "reason", "speculation") if label in named]
        found[(name, named.get("engine", "0"), *more)] = float(value)
    if not any(key[0] == "off" for key in found):
        raise ValueError("the server has no metrics of SmartSpec: it is not in use there (its log says why)")
    rows = [_row(found, *key[1:]) for key in found if key[0] == "ab_pairs"]
    return Report(
        tuple(sorted(rows, key=lambda row: (row.engine, row.requests == ALL, int(row.requests.replace(ALL, "0"))))),
        {key[1]: key[2] for key, value in found.items() if key[0] == "off" and value},
        {key[1]: value for key, value in found.items() if key[0] == "guard_ratio"},
    )


def _row(found: dict[tuple[str, ...], float], engine: str, requests: str) -> Row:
    low, high = (found.get((f"ab_ratio_{end}", engine, requests)) for end in ("low", "high"))
    speeds = [
        found[(name, engine, requests, state)]
        for name in ("ab_request_tokens_per_second", "ab_tokens_per_second")
        for state in ("off", "on")
    ]
    pairs, ratio = int(found[("ab_pairs", engine, requests)]), found[("ab_ratio", engine, requests)]
    return Row(engine, requests, pairs, ratio, low, high, *speeds)


def table(report: Report) -> str:
    """For people: a table for each engine, and what is off."""
    lines = []
    for engine in sorted({row.engine for row in report.rows}):
        rows = [row for row in report.rows if row.engine == engine]
        lines += [f"engine {engine}"] if len(rows) < len(report.rows) else []
        lines += _aligned([COLUMNS, *map(_cells, rows)])
    if lines:
        lines.append("Speeds are tokens per second and request; under `all`, tokens per second of all requests.")
    for engine, reason in sorted(report.off.items()):
        lines.append(f"Engine {engine} serves without drafts now ({reason}).")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    requests = row.requests if row.requests == ALL else f"{row.requests} or more"
    interval = "" if row.low is None or row.high is None else f"{row.low:.3f} - {row.high:.3f}"
    speeds = [f"{value:.1f}" for value in (row.off_speed, row.on_speed)]
    throughputs = [f"{value:.1f}" for value in (row.off_throughput, row.on_throughput)]
    return requests, str(row.pairs), *speeds, f"{row.ratio:.3f}", interval, *throughputs


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def main(arguments: list[str] | None = None) -> int:
    """Prints a table. Exit status: 0, 1 while there are no results, 2 where there can be none."""
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
        text = "no pair of windows with traffic yet: with --act there is one a minute. Without it, there will be none."
        print("\n".join(filter(None, [text, table(report)])))
    return 0 if report.rows else 1


if __name__ == "__main__":
    sys.exit(main())
