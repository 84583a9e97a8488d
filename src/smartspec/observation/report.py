"""The report of an observation to the operator: now, what each length would make, the crossover,
what the present setting loses. As JSON-able values, and as text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from smartspec.observation.acceptance import (
    ALIKE_STEPS,
    BETWEEN,
    BEYOND,
    SEEN,
    acceptance_by_depth,
    accepted_moments,
)
from smartspec.observation.forecast import INTERVAL, OFF, Forecast, Forecasts
from smartspec.observation.records import COLUMN, Observation, total
from smartspec.observation.step_times import STALL_STEPS

LEAST_SHARE = 0.01  # of the time at a load: loads that were rarer are not shown
MARKS = {SEEN: " ", BETWEEN: "~", BEYOND: "*"}
WORDS = {
    SEEN: "seen",
    BETWEEN: "interpolated: not seen, between loads and lengths that were",
    BEYOND: "extrapolated: beyond the loads or lengths that were seen",
}
USUAL_MOST = 4  # times the largest load seen, where the engine's own limit is unknown


@dataclass(frozen=True)
class Load:
    """A level of requests at a time that was seen."""

    requests: float
    share: float  # of the time of all steps
    tokens_per_second: float  # measured
    lengths: dict[int, int]  # steps by draft length
    accepted: float  # draft tokens of a request in a step, measured
    # relative standard deviations of the measured seconds and of accepted
    doubt: tuple[float, float]


def loads_of(observation: Observation) -> list[Load]:
    """The loads with LEAST_SHARE of the time or more, the smallest first."""
    _, spread = accepted_moments(observation.outcomes)
    seconds = sum(cell[COLUMN["seconds"]] for cell in observation.cells.values())
    loads = []
    for cells in observation.by_level.values():
        sums = total(cells.values())
        if sums["seconds"] < LEAST_SHARE * seconds or not sums["emitted_tokens"]:
            continue
        lengths: Counter[int] = Counter()
        for (_, length, _), cell in cells.items():
            lengths[length] += int(cell[0])
        steps, rows = sums["steps"], max(sums["decoding"], 1.0)
        variance = max(sums["squares"] * steps / sums["seconds"] ** 2 - 1.0, 0.0)
        accepted = max(sums["emitted_tokens"] - rows - sums["prefills"], 0.0) / rows
        of_accepted = sqrt(spread * ALIKE_STEPS / rows) / accepted if accepted else 0.0
        loads.append(
            Load(
                requests=sums["requests"] / steps,
                share=sums["seconds"] / seconds,
                tokens_per_second=sums["emitted_tokens"] / sums["seconds"],
                lengths=dict(lengths),
                accepted=accepted,
                doubt=(sqrt(variance * STALL_STEPS / steps), of_accepted),
            )
        )
    if not loads:
        raise ValueError(f"no load emitted tokens in {LEAST_SHARE:.0%} of the time: send requests")
    return loads


def longest_of(observation: Observation) -> int:
    """Draft tokens to look at: the engine's limit, or the longest draft seen."""
    seen = max((outcome.length for outcome in observation.outcomes), default=0)
    return max(int(observation.setup.get("longest") or 0), seen, 1)


def most_requests(observation: Observation) -> int:
    """Requests at a time to look at."""
    largest = max(cell[COLUMN["requests"]] / cell[0] for cell in observation.cells.values())
    return int(observation.setup.get("max_requests") or np.ceil(USUAL_MOST * largest))


def summary(forecasts: Forecasts) -> dict:
    """Everything, JSON-able. Speeds are tokens per second."""
    observation, loads = forecasts.observation, loads_of(forecasts.observation)
    lengths = tuple(forecasts.likeliest.drafts)  # OFF, 0, 1, ...
    likeliest = _speeds(forecasts.likeliest, loads, lengths)
    draws = [_speeds(draw, loads, lengths) for draw in forecasts.draws]
    best = likeliest[:, 1:].argmax(axis=1)  # of the lengths from 0 on
    shown = []
    for i, load in enumerate(loads):
        found = {
            name_of(length): _value(likeliest[i, j], [speeds[i, j] for speeds in draws], 1)
            | {
                "ms_per_token": round(float(1e3 * load.requests / likeliest[i, j]), 2),
                "known": forecasts.known(load.requests, length),
            }
            for j, length in enumerate(lengths)
        }
        length = lengths[1 + best[i]]
        shown.append(
            {
                "requests": round(load.requests, 1),
                "share": round(load.share, 4),
                "now": round(load.tokens_per_second, 1),
                "ms_per_token": round(1e3 * load.requests / load.tokens_per_second, 2),
                "present_lengths": load.lengths,
                "lengths": found,
                "goodput": found[name_of(length)] | {"length": length},
            }
        )
    traffic = traffic_of(observation)
    return {
        "setup": observation.setup,
        "traffic": traffic,
        "drafter_kv": drafter_kv(observation.setup.get("kv"), traffic),
        "acceptance": acceptance_of(observation),
        "loads": shown,
        "crossover": _crossover(forecasts),
        "regret": _regret(loads, likeliest, draws, best),
    }


def traffic_of(observation: Observation) -> dict:
    """Arrivals and lengths of requests."""
    arrivals = observation.arrivals
    sums = total(observation.cells.values())
    requests, busy, emitted = max(arrivals.requests, 1), sums["seconds"], sums["emitted_tokens"]
    return {
        "steps": observation.num_steps,
        "left_out": observation.left_out,
        "seconds": round(arrivals.seconds, 1),
        "busy_share": round(min(busy / max(arrivals.seconds, busy), 1.0), 4),
        "requests": arrivals.requests,
        "requests_per_second": round(arrivals.requests / max(arrivals.seconds, 1e-9), 3),
        "mean_prompt_tokens": round(arrivals.prompt_tokens / requests, 1),
        "mean_output_tokens": round(emitted / requests, 1),
        "tokens_per_second": round(emitted / busy, 1),
    }


def drafter_kv(kv: dict | None, traffic: dict) -> dict | None:
    """What the drafter's KV costs: its share of the memory for KV, and the tokens and the requests
    as observed that fit into that memory, with it and without. None where it has none, or the
    engine does not say."""
    if not kv or not kv["drafter_share"]:
        return None
    length = max(traffic["mean_prompt_tokens"] + traffic["mean_output_tokens"], 1.0)
    tokens, without = kv["tokens"], kv["tokens"] / (1.0 - kv["drafter_share"])
    return {
        "share": kv["drafter_share"],
        "tokens": tokens,
        "tokens_without": round(without),
        "requests": round(tokens / length, 1),
        "requests_without": round(without / length, 1),
    }


def acceptance_of(observation: Observation) -> dict:
    """The acceptance by depth, of all requests and of each class, where those before were accepted,
    and tokens tested."""
    classes, found = observation.by_class, {}
    shown = {name: some for name, some in classes.items() if name and len(classes) > 1}
    for name, outcomes in ({"all": observation.outcomes} | shown).items():
        depths = acceptance_by_depth(outcomes)
        found[name] = {
            "acceptance": [round(chance, 4) for chance, _ in depths],
            "tested": [n for _, n in depths],
        }
    return found


def name_of(length: int) -> str:
    return "off" if length == OFF else str(length)


def text(found: dict) -> str:
    """The text of a summary, for a terminal."""
    setup, traffic = found["setup"], found["traffic"]
    names = [str(setup[name]) for name in ("model", "method", "device") if setup.get(name)]
    lines = [
        f"{', '.join(names)}; {setup.get('engine', 'engine')} {setup.get('version', '')}",
        f"{traffic['steps']:,} steps in {traffic['seconds']:,.0f} s (busy "
        f"{traffic['busy_share']:.0%}), {traffic['requests']:,} requests, "
        f"{traffic['requests_per_second']:g} a second, prompts of "
        f"{traffic['mean_prompt_tokens']:g} tokens, answers of {traffic['mean_output_tokens']:g}",
    ]
    if kv := found["drafter_kv"]:
        lines.append(
            f"the drafter's KV takes {kv['share']:.1%} of the memory for KV: {kv['tokens']:,} "
            f"tokens fit, {kv['tokens_without']:,} without it; that is {kv['requests']:,} requests "
            f"of this length, {kv['requests_without']:,} without it, and further ones wait"
        )
    for name, each in found["acceptance"].items():
        depths = " ".join(f"{chance:.2f}" for chance in each["acceptance"])
        lines.append(f"acceptance by depth, {name}: {depths or 'no draft was verified'}")
    known = {each["known"] for load in found["loads"] for each in load["lengths"].values()}
    legend = [
        "tokens per second, ± half of a 90 % interval; off: a server without speculation; 0, 1, "
        "...: draft length",
        *(f"{MARKS[name]} {WORDS[name]}" for name in (BETWEEN, BEYOND) if name in known),
    ]
    return "\n".join([*lines, "", *_table(found["loads"]), "", *legend, "", *_conclusions(found)])


def _conclusions(found: dict) -> list[str]:
    """A line each: now, the best, the crossover, what the present setting loses."""
    crossover, regret = found["crossover"], found["regret"]
    load = max(found["loads"], key=lambda each: each["share"])
    best, longest = load["goodput"], list(load["lengths"])[-1]
    speeds = [_shown(best[name]) for name in ("value", "low", "high")]
    change = f"none up to {crossover['most']} requests at a time: drafts make most"
    if crossover["requests"] is not None:
        beyond = "" if crossover["known"] == SEEN else f", {WORDS[crossover['known']]}"
        change = (
            f"from {crossover['requests']} at a time on ({crossover['low']} to "
            f"{crossover['high'] or 'none'}{beyond}) no speculation makes most"
        )
    return [
        f"most of the time: {load['requests']:g} requests at a time, {_shown(load['now'])} "
        f"tokens/s, {load['ms_per_token']:.1f} ms a token; goodput would make {speeds[0]} "
        f"({speeds[1]} to {speeds[2]}) with length {best['length']}",
        f"crossover: {change}",
        f"the present setting makes {100 * regret['value']:.1f} % less than the best of lengths "
        f"0 to {longest} at each load ({100 * regret['low']:.1f} to "
        f"{100 * regret['high']:.1f} %)",
    ]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _speeds(forecast: Forecast, loads: list[Load], lengths: tuple[int, ...]) -> np.ndarray:
    """Float [loads, lengths], right for what was measured at each load: its requests accept as many
    tokens as there, and times are off by the factor by which those of its own lengths are."""
    rows = []
    for load in loads:
        of_seconds, of_accepted = np.exp(np.array(forecast.luck[:2]) * load.doubt)
        own = {k: n for k, n in load.lengths.items() if k in lengths}
        usual = sum(n * forecast.drafts[k].accepted for k, n in own.items())
        accepts = load.accepted * sum(own.values()) / usual if usual else 1.0
        factor = of_seconds
        if own:
            steps = [(n, *forecast.step(load.requests, k, accepts)) for k, n in own.items()]
            seconds = sum(n * each for n, _, each in steps)
            factor *= load.tokens_per_second * seconds / sum(n * tokens for n, tokens, _ in steps)
        found = [forecast.step(load.requests, k, accepts * of_accepted) for k in lengths]
        rows.append([factor * tokens / each for tokens, each in found])
    return np.array(rows)


def _value(value: float, draws: list[float], digits: int) -> dict:
    """A value with its interval, which holds it."""
    low, high = np.quantile(draws or [value], INTERVAL)
    found = {"value": value, "low": min(low, value), "high": max(high, value)}
    return {name: round(float(each), digits) for name, each in found.items()}


def _crossover(forecasts: Forecasts) -> dict:
    """low, high: None as an end says that there is none up to `most`."""
    most = most_requests(forecasts.observation)
    found, *draws = (each.crossover(most) for each in (forecasts.likeliest, *forecasts.draws))
    ends = np.array([np.inf if each is None else each for each in draws or [found]])
    low, high = np.quantile(ends, INTERVAL, method="nearest")
    low, high = min(low, found or np.inf), max(high, found or 0)
    return {
        "requests": found,
        "low": None if low == np.inf else int(low),
        "high": None if high == np.inf else int(high),
        "most": most,
        "known": None if found is None else forecasts.known(found, OFF),
    }


def _regret(
    loads: list[Load], likeliest: np.ndarray, draws: list[np.ndarray], best: np.ndarray
) -> dict:
    """Share of the best lengths' tokens that the present setting does not make, over the loads as
    long as they were."""
    shares = np.array([load.share for load in loads])
    now = float(shares @ np.array([load.tokens_per_second for load in loads]))

    def regret(speeds: np.ndarray) -> float:
        return max(1.0 - now / float(shares @ speeds[range(len(loads)), 1 + best]), 0.0)

    return _value(regret(likeliest), list(map(regret, draws)), 4)


def _table(loads: list[dict]) -> list[str]:
    rows = [["requests", "time", "now", "ms/token", *loads[0]["lengths"], "goodput"]]
    for load in loads:
        best = load["goodput"]
        rows.append(
            [
                f"{load['requests']:g}",
                f"{100 * load['share']:.0f} %",
                _shown(load["now"]),
                f"{load['ms_per_token']:.1f}",
                *map(_cell, load["lengths"].values()),
                f"{_shown(best['value'])} (K={best['length']})",
            ]
        )
    return aligned(rows)


def _cell(value: dict) -> str:
    half = (value["high"] - value["low"]) / 2 / max(value["value"], 1e-9)
    return f"{_shown(value['value'])}±{100 * half:.0f}%{MARKS[value['known']]}"


def _shown(value: float) -> str:
    """Tokens per second, with as many digits as count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
