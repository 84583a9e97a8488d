"""The rate steps 1 -> 4 -> 8 with mixed data: latency and chosen length over time.

As in the authors' scripts: each request is of one of four data sets, chosen evenly; numbers of requests are
proportional to the rates; gaps are exponential. Lengths and acceptance of the data sets are assumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.paper.points import Figure, Point, Settings, Values
from lab.paper.ratios import paired_ratio
from lab.paper.virtual_run import latencies_of, run_virtually
from smartspec.control.log.decision import DecisionRecord
from smartspec.report.sections import Line, Plot, Section, Table
from smartspec.sim.scenario import Scenario
from smartspec.sim.world.traffic import Traffic, random_lengths

NAME = "rate_step"
RATES = (1, 4, 8)
POLICIES = ("off", "fixed:1", "fixed:3", "fixed:5", "fixed:7", "goodput", "turbospec")
SECONDS_OF_RATE = 30.0
NUM_BINS = 9  # three for each rate


@dataclass(frozen=True)
class DataSet:
    """Means of prompt and output tokens; acceptance as in sim.world.class_spec."""

    name: str
    prompt_tokens: int
    output_tokens: int
    acceptance: str


DATA_SETS = (
    DataSet("ShareGPT", 200, 250, "0.6/8/2"),
    DataSet("Sonnet", 500, 150, "0.7/8/2"),
    DataSet("InstructCoder", 400, 250, "0.8/8/2"),
    DataSet("AIME", 150, 500, "0.7/8/2"),
)
RUN = {
    "model": "llama-3.1-8b",
    "draft_model": "eagle-llama-3.1-8b",
    "hardware": "h100",
    "drafter": "model",
    "acceptance": ",".join(data_set.acceptance for data_set in DATA_SETS),
}


def rate_step_figure(run: dict | None = None, seconds_of_rate: float = SECONDS_OF_RATE) -> Figure:
    """A run for every policy."""
    settings = [RUN | (run or {}) | {"policy": policy, "seconds_of_rate": seconds_of_rate} for policy in POLICIES]
    return Figure(NAME, tuple(settings), measure)


def mixed_traffic(seconds_of_rate: float, seed: int = 0) -> Traffic:
    """Requests of all data sets; the k-th rate lasts about so many seconds."""
    counts = [round(rate * seconds_of_rate) for rate in RATES]
    random = np.random.default_rng([seed, 1])
    gaps = np.concatenate([random.exponential(1 / rate, count) for rate, count in zip(RATES, counts, strict=True)])
    class_ids = np.random.default_rng([seed, 0]).integers(0, len(DATA_SETS), size=len(gaps))
    lengths = np.array(
        [
            [random_lengths(getattr(data_set, field), len(gaps), seed, stream) for data_set in DATA_SETS]
            for stream, field in ((2, "prompt_tokens"), (3, "output_tokens"))
        ]
    )
    prompts, outputs = lengths[:, class_ids, np.arange(len(gaps))]
    return Traffic(prompts, outputs, class_ids, arrival_seconds=gaps.cumsum())


def measure(settings: Settings) -> Values:
    """Latencies in seconds by request; and by moment, seconds from the start: requests' mean latency (by arrival) and
    draft tokens verified per request and step. null where there are none."""
    fields = {name: value for name, value in settings.items() if name != "seconds_of_rate"}
    traffic = mixed_traffic(settings["seconds_of_rate"])
    lengths = _LengthsOverTime()
    # The scenario wants a rate, and its traffic is not used.
    run = run_virtually(Scenario(rate=1.0, **fields), traffic, lengths.add)
    latencies = latencies_of(run)
    edges = np.linspace(0, traffic.arrival_seconds[-1], NUM_BINS + 1)
    return {
        "latencies": latencies,
        "arrivals": traffic.arrival_seconds.round(3).tolist(),
        "moments": ((edges[:-1] + edges[1:]) / 2).tolist(),
        "latency": _means(traffic.arrival_seconds, np.array(latencies), np.ones(len(latencies)), edges),
        "length": _means(np.array(lengths.now), np.array(lengths.verified), np.array(lengths.rows), edges),
    }


class _LengthsOverTime:
    """By step: when it began, draft tokens verified and decoding requests."""

    def __init__(self):
        self.now: list[float] = []
        self.verified: list[int] = []
        self.rows: list[int] = []

    def add(self, record: DecisionRecord) -> None:
        self.now.append(record.view.now)
        self.verified.append(int(record.outcome.verified.sum()))
        self.rows.append(record.view.num_rows)


def _means(moments: np.ndarray, values: np.ndarray, weights: np.ndarray, edges: np.ndarray) -> list[float | None]:
    """Sums of values over sums of weights, between each two edges; what is later than the last is left out."""
    totals = [np.histogram(moments, edges, weights=each)[0].tolist() for each in (values, weights)]
    return [value / weight if weight else None for value, weight in zip(*totals, strict=True)]


def rate_step_section(points: Sequence[Point]) -> Section:
    """The section of the page."""
    found = {settings["policy"]: values for settings, values in points}
    return Section(
        title="Rate steps 1, 4, 8 with mixed data (simulated)",
        text=(
            "Llama-3.1-8B with an EAGLE head on an H100. The rate goes from 1 to 4 to 8 requests per second; every "
            "request is of one of four data sets. A good policy is never above off, whatever comes.",
            "turbospec is the paper's later rule. Lengths and acceptance of the data sets are assumed: "
            + "; ".join(f"{d.name} {d.prompt_tokens} in, {d.output_tokens} out, {d.acceptance}" for d in DATA_SETS)
            + ".",
        ),
        plots=(
            _plot(found, "latency", "mean latency, seconds", "By the arrival of requests."),
            _plot(found, "length", "draft tokens per request and step"),
        ),
        tables=(_table(found),) if {"goodput"} < set(found) else (),
        command="python -m lab.paper",
    )


def _plot(found: dict[str, Values], name: str, label: str, caption: str = "") -> Plot:
    lines = []
    for policy, values in found.items():
        known = [
            (moment, value) for moment, value in zip(values["moments"], values[name], strict=True) if value is not None
        ]
        lines.append(Line(policy, tuple(moment for moment, _ in known), tuple(value for _, value in known)))
    return Plot(f"{name.capitalize()} over time", "seconds from the start", label, tuple(lines), caption)


def _table(found: dict[str, Values]) -> Table:
    """goodput against each other policy, in the part of each rate."""
    goodput = found["goodput"]
    ends = np.cumsum(RATES) / sum(RATES) * len(goodput["latencies"])
    parts = [slice(round(start), round(end)) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    rows = []
    for policy, values in found.items():
        for rate, part in zip(RATES, parts, strict=True) if policy != "goodput" else ():
            ratio = paired_ratio(values["latencies"][part], goodput["latencies"][part])
            rows.append((ratio.value, (policy, f"{rate:g}", ratio.text())))
    return Table(
        "How many times as long requests take as with goodput, worst first",
        ("policy", "requests/s", "policy / goodput"),
        tuple(row for _, row in sorted(rows, key=lambda row: row[0])),
        "Below 1 goodput is slower. In brackets: 90 % interval over requests; noise: it holds 1.",
    )
