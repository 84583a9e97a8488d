"""An observation as samples of Prometheus, and back: `smartspec vllm observed URL` reads a server's
/metrics."""

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, fields

from smartspec.observation.records import (
    BENDS,
    FORMAT,
    KEY,
    KIND,
    SUMS,
    Arrivals,
    DraftOutcome,
    Key,
    Observation,
)

STEPS, DRAFTS, ARRIVALS, SETUP = (
    f"smartspec_observed_{name}" for name in ("step_sums", "drafts", "arrivals", "setup_info")
)
TEXTS = {
    STEPS: "Sums over observed steps, by load and draft length",
    DRAFTS: "Observed drafts, by length and by what was verified and accepted",
    ARRIVALS: "Observed requests",
    SETUP: "What was observed, as JSON",
}
TIMEOUT_SECONDS = 10.0
MOST_BYTES = 64 * 2**20
OUTCOME = [each.name for each in fields(DraftOutcome)]
_SAMPLE = re.compile(r"(smartspec_observed_\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
Sample = tuple[str, dict[str, str], float]


def samples_of(engine: str, observation: Observation) -> Iterator[Sample]:
    """Return name, labels and value of each sample. engine: its number."""
    data = observation.to_dict()
    yield SETUP, {"engine": engine, "setup": json.dumps(data["setup"])}, 1.0
    for name, value in (data["arrivals"] | {"left_out": data["left_out"]}).items():
        yield ARRIVALS, {"engine": engine, "sum": name}, float(value)
    for cell in data["cells"]:
        labels = {"engine": engine} | {name: str(cell[name]) for name in KEY}
        sums = {name: cell[name] for name in SUMS} | dict(
            zip(map(_beyond, BENDS), cell["beyond"], strict=True)
        )
        for name, value in sums.items():
            yield STEPS, labels | {"sum": name}, value
    for outcome in data["outcomes"]:
        yield (
            DRAFTS,
            {"engine": engine} | {name: str(outcome[name]) for name in OUTCOME},
            float(outcome["count"]),
        )


def read_url(url: str) -> Observation:
    """Return the observation of the server at a URL, all its engines together. ValueError says what
    is wrong."""
    address = url if url.rstrip("/").endswith("/metrics") else f"{url.rstrip('/')}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as answer:
            page = answer.read(MOST_BYTES).decode("utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise ValueError(f"{address} does not answer ({error}): is the server up?") from error
    observations = observations_of(page)
    if not observations:
        raise ValueError(
            f"{address} tells no observation: start the server with --observe and send requests. "
            "Where it cannot write to its cache folder, its log says so"
        )
    return Observation.merged(observations)


def observations_of(page: str) -> list[Observation]:
    """Return the observation of each engine from a page of metrics. ValueError on samples that are
    corrupt."""
    engines: dict[str, list[tuple[str, dict[str, str], float]]] = {}
    for line in page.splitlines():
        if match := _SAMPLE.fullmatch(line.strip()):
            labels = {name: re.sub(r'\\[\\"n]', lambda m: _ESCAPES[m[0]], value) for name, value in
                      _LABEL.findall(match[2])}  # fmt: skip
            engines.setdefault(labels.get("engine", "0"), []).append(
                (match[1], labels, float(match[3]))
            )
    return [_observation(samples) for samples in engines.values()]


def _observation(samples: list[Sample]) -> Observation:
    cells: dict[Key, dict[str, float]] = {}
    arrivals, outcomes, setup = {}, [], "{}"
    try:
        for name, labels, value in samples:
            if name == STEPS:
                level, length, drafted = (int(labels[each]) for each in KEY)
                cells.setdefault((level, length, drafted), {})[labels["sum"]] = value
            elif name == ARRIVALS:
                arrivals[labels["sum"]] = value if labels["sum"] == "seconds" else int(value)
            elif name == DRAFTS:
                numbers = {each: int(labels[each]) for each in OUTCOME[1:]}
                outcomes.append({"class_name": labels["class_name"], "count": int(value)} | numbers)
            elif name == SETUP:
                setup = labels["setup"]
        left_out = int(arrivals.pop("left_out", 0))
        data = {
            "kind": KIND,
            "format": FORMAT,
            "bends": list(BENDS),
            "setup": json.loads(setup),
            "left_out": left_out,
            "arrivals": asdict(Arrivals()) | arrivals,
            "outcomes": outcomes,
            "cells": [_cell(*each) for each in cells.items()],
        }
    except (KeyError, ValueError) as error:
        raise ValueError(f"the observation in these metrics is corrupt ({error!r})") from error
    return Observation.from_dict(data)


def _cell(key: Key, sums: dict[str, float]) -> dict:
    named = dict(zip(KEY, key, strict=True)) | {name: sums[name] for name in SUMS}
    return named | {"beyond": [sums[_beyond(bend)] for bend in BENDS]}


def _beyond(bend: int) -> str:
    return f"fed_beyond_{bend}"
