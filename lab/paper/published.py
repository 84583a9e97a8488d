"""Published speed-ups beside those that come out here, and what makes them.

Two kinds: the paper's headlines, of which the sources at hand do not name the cell; and a table of
the authors' prototype (offline throughput with forced acceptance), which has every number.
"""

from collections.abc import Sequence

import numpy as np

from lab.paper.latency import Latencies, best_fixed, by_rate, fixed_of, means_by_cell
from lab.paper.lengths import OVER_OFF
from lab.paper.points import Figure, Point, Settings, Values
from lab.paper.virtual_run import run_virtually
from smartspec.report.page_parts import Section, Table
from smartspec.sim.scenario import Scenario
from smartspec.sim.world.traffic import Traffic
from smartspec.workload.summary import summarize

NAME = "offline"
OVER_FIXED = 1.9
# Tokens per second of Vicuna-7B + 160M on an H100: 128 requests of 1024 in and 128 out, about 92 at
# once.
_COLUMNS = ("off", "fixed:1", "fixed:3", "fixed:5", "fixed:7", "dynamic")
OFFLINE = {
    acceptance: dict(zip(_COLUMNS, tokens_per_second, strict=True))
    for acceptance, tokens_per_second in {
        "0.7": (1726.8, 1731.2, 1961.3, 1966.2, 1863.1, 1926.5),
        "0.8": (1726.8, 1762.5, 2040.5, 2124.9, 2089.6, 2062.3),
        "0.9": (1726.8, 1821.4, 2250.3, 2363.8, 2396.8, 2320.8),
    }.items()
}
OFFLINE_RUN = {
    "model": "vicuna-7b",
    "draft_model": "vicuna-160m",
    "hardware": "h100",
    "drafter": "model",
    "batch": 128,
    "max_batch": 128,
    "num_requests": 128,
    "kv_tokens": 92 * 1152,
}
PROMPT_TOKENS, OUTPUT_TOKENS = 1024, 128


def offline_figure() -> Figure:
    """All cells of the prototype's table; dynamic is both of ours and the paper's rule."""
    settings = [
        OFFLINE_RUN | {"acceptance": acceptance, "policy": policy}
        for acceptance, published in OFFLINE.items()
        for policy in (
            *(name for name in published if name != "dynamic"),
            "goodput",
            "smartspec-paper",
        )
    ]
    return Figure(NAME, tuple(settings), measure)


def measure(settings: Settings) -> Values:
    """Output tokens per second, of requests of equal lengths."""
    scenario = Scenario(**settings)
    run = run_virtually(scenario, _equal_requests(scenario.num_requests, scenario.batch))
    return {"tokens_per_second": summarize(run.records).output_tokens_per_second}


def _equal_requests(count: int, concurrency: int) -> Traffic:
    same = [np.full(count, value, dtype=np.int64) for value in (PROMPT_TOKENS, OUTPUT_TOKENS, 0)]
    return Traffic(*same, concurrency=concurrency)


def published_section(latency_points: Sequence[Point], offline_points: Sequence[Point]) -> Section:
    """The section of the page."""
    headlines = _headlines(latency_points)
    return Section(
        title="Published speed-ups beside ours (simulated)",
        text=(
            f"The abstract says up to {OVER_OFF} x lower mean latency than without speculation, "
            f"never of which cell. Up to {OVER_FIXED} x over the best fixed length is recalled, "
            "and no source at hand confirms it. The authors' prototype itself lies 2 to 3.2 % "
            "below the best fixed length at constant load.",
            "Two things make a speed-up. The faster step is what one request alone gains: it is "
            "bounded by acceptance and by the time of a draft pass against the target's. The "
            "shorter queue is gained where plain decoding cannot serve the rate and speculation "
            "can: it grows as long as requests arrive. So the largest ratios lie just above what "
            "off can serve, and fall where speculation cannot serve the rate either. Against a "
            "fixed length the same holds where that length saturates first.",
        ),
        tables=tuple(table for table in (headlines, _offline(offline_points)) if table is not None),
        command="python -m lab.paper",
    )


def _headlines(points: Sequence[Point]) -> Table | None:
    rows = [_headline(name, by_rate(means)) for name, means in means_by_cell(points).items()]
    texts = tuple(text for _, text in sorted(row for row in rows if row is not None))
    if not texts:
        return None
    return Table(
        f"Largest speed-ups of goodput by cell; published: up to {OVER_OFF} over off, {OVER_FIXED} "
        "over the best fixed",
        (
            "cell",
            "over off",
            "over the best fixed of a rate",
            "over one length for all rates",
            "over the worst fixed",
        ),
        texts,
        "Least speed-up over off first. In brackets: the rate at which it is reached. One length "
        "for all rates: the fixed length of least latency summed over the rates.",
    )


def _headline(cell: str, rates: dict[float, Latencies]) -> tuple[float, tuple[str, ...]] | None:
    if not rates:
        return None
    policies = next(iter(rates.values()))
    one = best_fixed(
        {policy: [sum(of_rate[policy]) for of_rate in rates.values()] for policy in policies}
    )
    rivals = (
        lambda of_rate: "off",
        best_fixed,
        lambda of_rate: one,
        lambda of_rate: max(fixed_of(of_rate), key=lambda policy: sum(of_rate[policy])),
    )
    largest = [
        max(
            (sum(of_rate[rival(of_rate)]) / sum(of_rate["goodput"]), rate)
            for rate, of_rate in rates.items()
        )
        for rival in rivals
    ]
    return largest[0][0], (cell, *(f"{value:.2f} ({rate:g}/s)" for value, rate in largest))


def _offline(points: Sequence[Point]) -> Table | None:
    """The prototype's throughput and ours, each over its own off."""
    found = {
        (settings["acceptance"], settings["policy"]): values["tokens_per_second"]
        for settings, values in points
    }
    rows = []
    for (acceptance, policy), here in found.items():
        published = OFFLINE[acceptance]
        name = policy if policy in published else "dynamic"
        if policy == "off" or (acceptance, "off") not in found:
            continue
        over_off = published[name] / published["off"], here / found[acceptance, "off"]
        label = policy if policy == name else f"{name}: {policy}"
        texts = [f"{published[name]:.0f}", f"{here:.0f}", *(f"{ratio:.2f}" for ratio in over_off)]
        steps = [_plain_steps(float(acceptance), policy, ratio) for ratio in over_off]
        rows.append((abs(over_off[1] / over_off[0] - 1), (acceptance, label, *texts, *steps)))
    if not rows:
        return None
    return Table(
        "Offline throughput of the prototype (Vicuna-7B + 160M, H100, forced acceptance), largest "
        "difference first",
        (
            "acceptance",
            "policy",
            "tokens/s, published",
            "tokens/s, here",
            "over off, published",
            "over off, here",
            "plain steps of a step, published",
            "plain steps of a step, here",
        ),
        tuple(row for _, row in sorted(rows, key=lambda row: -row[0])),
        "Published by the authors' plot script. The last columns are tokens of a step over the "
        "speed-up, so prefill is spread over them: a speculative step of the prototype takes that "
        "many times as long as a plain one. Here passes take what their arithmetic and memory "
        "traffic take, and the host 1 ms. That is the difference.",
    )


def _plain_steps(acceptance: float, policy: str, over_off: float) -> str:
    """How many plain steps a step of a fixed length takes, as its speed-up tells."""
    if not policy.startswith("fixed:"):
        return "-"
    return (
        f"{(acceptance ** np.arange(int(policy.removeprefix('fixed:')) + 1)).sum() / over_off:.2f}"
    )
