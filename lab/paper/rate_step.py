"""The rate steps 1 -> 4 -> 8 with mixed data, and one beyond what plain decoding can serve: latency
and chosen length over time.

As in the authors' scripts: each request is of one of four data sets, chosen evenly; numbers of
requests are proportional to the rates; gaps are exponential. Lengths and acceptance of the data
sets are assumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.paper.cells import Effort
from lab.paper.points import Figure, Point, Settings, Values
from lab.paper.ratios import SPREAD, ratio_of_seeds
from lab.paper.virtual_run import latencies_of, run_virtually
from smartspec.report.page_parts import Line, Plot, Section, Table
from smartspec.sim.scenario import Scenario
from smartspec.sim.virtual_engine import Run
from smartspec.sim.world.traffic import Traffic, random_lengths

NAME = "rate_step"
MIXED = "mixed data"
# requests per second; a fourth rate is so many times what off can serve
RATES, BEYOND = (1.0, 4.0, 8.0), 1.2
POLICIES = ("off", "fixed:1", "fixed:3", "fixed:5", "fixed:7", "goodput", "turbospec")
BINS_OF_RATE = 3


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


def rate_step_figure(effort: Effort, capacity: float) -> Figure:
    """A run for every seed and policy. capacity: requests per second that off can serve."""
    rates = [*RATES, float(f"{BEYOND * capacity:.3g}")]
    run = RUN | {"rates": rates, "seconds_of_rate": effort.seconds / len(rates)}
    settings = [
        run | {"policy": policy, "seed": seed} for seed in effort.seeds for policy in POLICIES
    ]
    return Figure(NAME, tuple(settings), measure)


def mixed_requests(count: int, concurrency: int, seed: int = 0) -> Traffic:
    """Requests of all data sets in a closed loop."""
    class_ids = np.random.default_rng([seed, 0]).integers(0, len(DATA_SETS), size=count)
    lengths = np.array(
        [
            [
                random_lengths(getattr(data_set, field), count, seed, stream)
                for data_set in DATA_SETS
            ]
            for stream, field in ((2, "prompt_tokens"), (3, "output_tokens"))
        ]
    )
    prompts, outputs = lengths[:, class_ids, np.arange(count)]
    return Traffic(prompts, outputs, class_ids, concurrency=concurrency)


def mixed_traffic(rates: Sequence[float], seconds_of_rate: float, seed: int = 0) -> Traffic:
    """The same in an open loop; the k-th rate lasts about so many seconds."""
    random = np.random.default_rng([seed, 1])
    gaps = np.concatenate(
        [random.exponential(1 / rate, round(rate * seconds_of_rate)) for rate in rates]
    )
    return replace(
        mixed_requests(len(gaps), 1, seed), concurrency=None, arrival_seconds=gaps.cumsum()
    )


def measure(settings: Settings) -> Values:
    """Mean latency in seconds of the requests of each rate; and by moment, seconds from the start:
    that of requests (by arrival) and draft tokens verified per request and step. null where there
    are none."""
    own = ("rates", "seconds_of_rate")
    rates, seconds_of_rate = (settings[name] for name in own)
    traffic = mixed_traffic(rates, seconds_of_rate, settings["seed"])
    lengths = _LengthsOverTime()
    # The scenario wants a rate, and its traffic is not used.
    scenario = Scenario(
        rate=1.0, **{name: value for name, value in settings.items() if name not in own}
    )
    latencies = np.array(latencies_of(run_virtually(scenario, traffic, on_finished=lengths.add)))
    arrivals = traffic.arrival_seconds
    edges = np.linspace(0, arrivals[-1], BINS_OF_RATE * len(rates) + 1)
    ends = np.cumsum([round(rate * seconds_of_rate) for rate in rates])[:-1]
    return {
        "means": [round(float(part.mean()), 5) for part in np.split(latencies, ends)],
        "moments": ((edges[:-1] + edges[1:]) / 2).round(2).tolist(),
        "latency": _means(arrivals, latencies, edges),
        "length": lengths.means(edges),
    }


class _LengthsOverTime:
    """At moments at which requests end: draft tokens verified so far, and requests that decoded,
    summed over steps."""

    def __init__(self):
        self._known: list[tuple[float, int, int]] = [(0.0, 0, 0)]

    def add(self, run: Run) -> None:
        last, totals = run.records[-1], run.totals
        now = last.start_seconds + last.end_to_end_seconds
        self._known.append((now, totals.num_verified_tokens, totals.num_decode_rows))

    def means(self, edges: np.ndarray) -> list[float | None]:
        """Draft tokens per request and step between each two edges."""
        moments, *sums = np.array(self._known, dtype=float).T
        verified, rows = (np.diff(np.interp(edges, moments, each)) for each in sums)
        return [
            round(v / r, 5) if r else None
            for v, r in zip(verified.tolist(), rows.tolist(), strict=True)
        ]


def _means(moments: np.ndarray, values: np.ndarray, edges: np.ndarray) -> list[float | None]:
    """Of the values between each two edges."""
    sums, counts = (
        np.histogram(moments, edges, weights=each)[0].tolist()
        for each in (values, np.ones(len(values)))
    )
    return [
        round(total / count, 5) if count else None
        for total, count in zip(sums, counts, strict=True)
    ]


def rate_step_section(points: Sequence[Point]) -> Section:
    """The section of the page. Curves are of the first seed."""
    rates, first = points[0][0]["rates"], points[0][0]["seed"]
    found = {settings["policy"]: values for settings, values in points if settings["seed"] == first}
    shown = ", ".join(f"{rate:g}" for rate in rates)
    return Section(
        title=f"Rate steps {shown} with mixed data (simulated)",
        text=(
            f"Llama-3.1-8B with an EAGLE head on an H100. The rate goes through {shown} requests "
            f"per second; every request is of one of four data sets. The last rate is {BEYOND} "
            "times what off can serve. A good policy is never above off, whatever comes.",
            "turbospec is the paper's later rule. Lengths and acceptance of the data sets are "
            "assumed: "
            + "; ".join(
                f"{d.name} {d.prompt_tokens} in, {d.output_tokens} out, {d.acceptance}"
                for d in DATA_SETS
            )
            + ".",
        ),
        plots=(
            _plot(found, "latency", "mean latency, seconds", "By the arrival of requests."),
            _plot(found, "length", "draft tokens per request and step"),
        ),
        tables=(_table(points, rates),) if {"goodput"} < set(found) else (),
        command="python -m lab.paper",
    )


def _plot(found: dict[str, Values], name: str, label: str, caption: str = "") -> Plot:
    lines = []
    for policy, values in found.items():
        known = [
            (moment, value)
            for moment, value in zip(values["moments"], values[name], strict=True)
            if value is not None
        ]
        lines.append(
            Line(policy, tuple(moment for moment, _ in known), tuple(value for _, value in known))
        )
    title = f"{name.capitalize()} over time"
    return Plot(
        title, "seconds from the start", label, tuple(lines), caption, log_y=name == "latency"
    )


def _table(points: Sequence[Point], rates: Sequence[float]) -> Table:
    """goodput against each other policy, in the part of each rate."""
    found = {(settings["policy"], settings["seed"]): values["means"] for settings, values in points}
    seeds = [seed for policy, seed in found if policy == "goodput"]
    rows = []
    for policy in POLICIES:
        both = [seed for seed in seeds if (policy, seed) in found]
        for part, rate in enumerate(rates) if both and policy != "goodput" else ():
            ratio = ratio_of_seeds(
                *([found[name, seed][part] for seed in both] for name in (policy, "goodput"))
            )
            rows.append((ratio.value, (policy, f"{rate:g}", ratio.text())))
    return Table(
        "How many times as long requests take as with goodput, worst first",
        ("policy", "requests/s", "policy / goodput"),
        tuple(row for _, row in sorted(rows, key=lambda row: row[0])),
        f"Below 1 goodput is slower. {SPREAD}",
    )
