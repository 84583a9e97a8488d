"""The report of an observation to the operator: now, what each length would make, the crossover,
what the present setting loses. As JSON-able values, and as text."""

from collections.abc import Sequence

import numpy as np

from smartspec.observation.acceptance import BETWEEN, BEYOND, SEEN, acceptance_by_depth
from smartspec.observation.forecast import INTERVAL, OFF, Forecasts
from smartspec.observation.loads import Load, loads_of
from smartspec.observation.records import COLUMN, Observation, total

MARKS = {SEEN: " ", BETWEEN: "~", BEYOND: "*"}
WORDS = {
    SEEN: "seen",
    BETWEEN: "interpolated: not seen, between loads and lengths that were",
    BEYOND: "extrapolated: beyond the loads or lengths that were seen",
}
USUAL_MOST = 4  # times the largest load seen, where the engine's own limit is unknown


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
    # float [1 + draws, loads, lengths], the likeliest first
    speeds = np.array(
        [
            [forecast.speeds(load) for load in loads]
            for forecast in (forecasts.likeliest, *forecasts.draws)
        ]
    )
    best = 1 + speeds[0, :, 1:].argmax(axis=1)  # of the lengths from 0 on
    shares = np.array([load.share for load in loads])
    now = shares @ [load.tokens_per_second for load in loads]
    regret = np.maximum(1.0 - now / (speeds[:, range(len(loads)), best] @ shares), 0.0)
    traffic = traffic_of(observation)
    return {
        "setup": observation.setup,
        "traffic": traffic,
        "drafter_kv": drafter_kv(observation.setup.get("kv"), traffic),
        "acceptance": acceptance_of(observation),
        "loads": [_load(forecasts, load, speeds[:, i], best[i]) for i, load in enumerate(loads)],
        "crossover": _crossover(forecasts),
        # of the best lengths' tokens, over the loads as long as they were
        "regret": _value(regret, 4),
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


def _load(forecasts: Forecasts, load: Load, speeds: np.ndarray, best: int) -> dict:
    """speeds: float [1 + draws, lengths]. best: the number of a length."""

    def milliseconds(tokens_per_second: float) -> float:
        return round(float(1e3 * load.requests / tokens_per_second), 2)

    lengths = {
        name_of(length): _value(of_length, 1)
        | {
            "ms_per_token": milliseconds(of_length[0]),
            "known": forecasts.known(load.requests, length),
        }
        for length, of_length in zip(forecasts.likeliest.drafts, speeds.T, strict=True)
    }
    name = list(lengths)[best]
    return {
        "requests": round(load.requests, 1),
        "share": round(load.share, 4),
        "now": round(load.tokens_per_second, 1),
        "ms_per_token": milliseconds(load.tokens_per_second),
        "present_lengths": load.lengths,
        "lengths": lengths,
        "goodput": lengths[name] | {"length": int(name)},
    }


def _value(values: np.ndarray, digits: int) -> dict:
    """The first of the values, with an interval of the others, which holds it."""
    value, *draws = values
    low, high = np.quantile(draws or [value], INTERVAL)
    found = {"value": value, "low": min(low, value), "high": max(high, value)}
    return {name: round(float(each), digits) for name, each in found.items()}


def _crossover(forecasts: Forecasts) -> dict:
    """low, high: None as an end says that there is none up to `most`."""
    most = most_requests(forecasts.observation)
    found, *draws = (each.crossover(most) for each in (forecasts.likeliest, *forecasts.draws))
    ends = [np.inf if each is None else each for each in draws or [found]]
    low, high = np.quantile(ends, INTERVAL, method="nearest")
    low, high = min(low, found or np.inf), max(high, found or 0)
    return {
        "requests": found,
        "low": None if low == np.inf else int(low),
        "high": None if high == np.inf else int(high),
        "most": most,
        "known": None if found is None else forecasts.known(found, OFF),
    }


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


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _cell(value: dict) -> str:
    half = (value["high"] - value["low"]) / 2 / max(value["value"], 1e-9)
    return f"{_shown(value['value'])}±{100 * half:.0f}%{MARKS[value['known']]}"


def _conclusions(found: dict) -> list[str]:
    """A line each: now, the best, the crossover, what the present setting loses."""
    crossover, regret = found["crossover"], found["regret"]
    load = max(found["loads"], key=lambda each: each["share"])
    best, longest = load["goodput"], list(load["lengths"])[-1]
    change = f"none up to {crossover['most']} requests at a time: drafts make most"
    if crossover["requests"] is not None:
        beyond = "" if crossover["known"] == SEEN else f", {WORDS[crossover['known']]}"
        change = (
            f"from {crossover['requests']} at a time on ({crossover['low']} to "
            f"{crossover['high'] or 'none'}{beyond}) no speculation makes most"
        )
    return [
        f"most of the time: {load['requests']:g} requests at a time, {_shown(load['now'])} "
        f"tokens/s, {load['ms_per_token']:.1f} ms a token; goodput would make "
        f"{_shown(best['value'])} ({_shown(best['low'])} to {_shown(best['high'])}) with length "
        f"{best['length']}",
        f"crossover: {change}",
        f"the present setting makes {100 * regret['value']:.1f} % less than the best of lengths "
        f"0 to {longest} at each load ({100 * regret['low']:.1f} to "
        f"{100 * regret['high']:.1f} %)",
    ]


def _shown(value: float) -> str:
    """Tokens per second, with as many digits as count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
