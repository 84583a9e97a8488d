"""The report of an observation to the operator: now, what each length would make, the crossover,
what the present setting loses. As JSON-able values, and as text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smartspec.observation.acceptance import (
    ALIKE_STEPS,
    SEEN,
    acceptance_by_depth,
    accepted_variance,
)
from smartspec.observation.forecast import INTERVAL, OFF, Forecast, Forecasts
from smartspec.observation.records import COLUMN, SUMS, Observation
from smartspec.observation.step_times import STALL_STEPS

LEAST_SHARE = 0.01  # of the time at a load: loads that were rarer are not shown
MARKS = {"seen": " ", "between": "~", "beyond": "*"}
USUAL_MOST = 4  # times the largest load seen, where the engine's own limit is unknown


@dataclass(frozen=True)
class Load:
    """A level of requests at a time that was seen."""

    requests: float
    share: float  # of the time of all steps
    tokens_per_second: float  # measured
    milliseconds: float  # per token of a request, measured
    lengths: dict[int, int]  # steps by draft length
    accepted: float  # draft tokens of a request in a step, measured
    # relative standard deviations of the measured seconds and of accepted
    doubt: tuple[float, float]


def loads_of(observation: Observation) -> list[Load]:
    """The loads with LEAST_SHARE of the time or more, the smallest first."""
    by_level: dict[int, dict[int, np.ndarray]] = {}
    for (level, length, _), cell in sorted(observation.cells.items()):
        lengths_here = by_level.setdefault(level, {})
        lengths_here[length] = lengths_here.get(length, 0.0) + cell
    seconds = sum(cell[COLUMN["seconds"]] for cell in observation.cells.values())
    spread = accepted_variance(observation.outcomes)
    loads = []
    for cells in by_level.values():
        total = np.sum(list(cells.values()), axis=0)
        steps, taken, emitted = total[0], total[COLUMN["seconds"]], total[COLUMN["emitted_tokens"]]
        requests, speed = total[COLUMN["requests"]] / steps, emitted / taken
        if taken >= LEAST_SHARE * seconds and speed > 0:
            lengths = {length: int(cell[0]) for length, cell in cells.items()}
            measured = (requests, taken / seconds, speed, 1e3 * requests / speed, lengths)
            loads.append(Load(*measured, *_accepted(total, spread)))
    return loads


def _accepted(total: np.ndarray, spread: float) -> tuple[float, tuple[float, float]]:
    """Accepted and doubt of a Load. total: its sums. spread: variance of a draft's accepted
    tokens."""
    sums = dict(zip(SUMS, total, strict=False))
    seconds = sums["seconds"] / sums["steps"]
    variance = max(sums["squares"] / sums["steps"] / seconds**2 - 1.0, 0.0)
    rows = max(sums["decoding"], 1.0)
    accepted = max(sums["emitted_tokens"] - rows - sums["prefills"], 0.0) / rows
    doubt = np.sqrt(spread * ALIKE_STEPS / rows) / max(accepted, 1e-9) if accepted else 0.0
    return accepted, (float(np.sqrt(variance * STALL_STEPS / sums["steps"])), float(doubt))


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
    lengths = (OFF, *forecasts.likeliest.lengths)
    likeliest = _speeds(forecasts.likeliest, loads, lengths)
    draws = np.array([_speeds(draw, loads, lengths) for draw in forecasts.draws]).reshape(
        -1, *likeliest.shape
    )
    best = likeliest[:, 1:].argmax(axis=1)  # of the lengths from 0 on
    shown = []
    for i, load in enumerate(loads):
        found = {
            name_of(length): _value(likeliest[i, j], draws[:, i, j])
            | {"ms_per_token": round(float(1e3 * load.requests / likeliest[i, j]), 2)}
            | {"known": forecasts.known(load.requests, length)}
            for j, length in enumerate(lengths)
        }
        length = lengths[1 + best[i]]
        shown.append(
            {
                "requests": round(load.requests, 1),
                "share": round(load.share, 4),
                "now": round(load.tokens_per_second, 1),
                "ms_per_token": round(load.milliseconds, 2),
                "present_lengths": load.lengths,
                "lengths": found,
                "goodput": found[name_of(length)] | {"length": length},
            }
        )
    return {
        "setup": observation.setup,
        "traffic": traffic_of(observation),
        "acceptance": acceptance_of(observation),
        "loads": shown,
        "crossover": _crossover(forecasts),
        "regret": _regret(loads, likeliest, draws, best),
    }


def traffic_of(observation: Observation) -> dict:
    """Arrivals and lengths of requests."""
    arrivals, total = observation.arrivals, np.array(list(observation.cells.values())).sum(axis=0)
    requests, busy = max(arrivals.requests, 1), total[COLUMN["seconds"]]
    return {
        "steps": observation.num_steps,
        "left_out": observation.left_out,
        "seconds": round(arrivals.seconds, 1),
        "busy_share": round(min(busy / max(arrivals.seconds, busy), 1.0), 4),
        "requests": arrivals.requests,
        "requests_per_second": round(arrivals.requests / max(arrivals.seconds, 1e-9), 3),
        "mean_prompt_tokens": round(arrivals.prompt_tokens / requests, 1),
        "mean_output_tokens": round(total[COLUMN["emitted_tokens"]] / requests, 1),
        "tokens_per_second": round(total[COLUMN["emitted_tokens"]] / busy, 1),
    }


def acceptance_of(observation: Observation) -> dict:
    """The acceptance by depth, of all requests and of each class, where those before were accepted,
    and tokens tested."""
    classes = [name for name in observation.classes if name] if len(observation.classes) > 1 else []
    found = {"all": acceptance_by_depth(observation.outcomes)}
    found |= {name: acceptance_by_depth(observation.outcomes, name) for name in classes}
    return {
        name: {
            "acceptance": [round(chance, 4) for chance, _ in depths],
            "tested": [n for _, n in depths],
        }
        for name, depths in found.items()
    }


def shown_speed(value: float) -> str:
    """Tokens per second, with as many digits as count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def name_of(length: int) -> str:
    return "off" if length == OFF else str(length)


def text(found: dict) -> str:
    """The text of a summary, for a terminal."""
    setup, traffic = found["setup"], found["traffic"]
    names = [setup.get(name) for name in ("model", "method", "device")]
    lines = [
        f"{', '.join(str(name) for name in names if name)}; {setup.get('engine', 'engine')} "
        f"{setup.get('version', '')}",
        f"{traffic['steps']:,} steps in {traffic['seconds']:,.0f} s (busy "
        f"{traffic['busy_share']:.0%}), {traffic['requests']:,} requests, "
        f"{traffic['requests_per_second']:g} a second, prompts of "
        f"{traffic['mean_prompt_tokens']:g} tokens, answers of {traffic['mean_output_tokens']:g}",
    ]
    for name, each in found["acceptance"].items():
        depths = " ".join(f"{chance:.2f}" for chance in each["acceptance"])
        lines.append(f"acceptance by depth, {name}: {depths or 'no draft was verified'}")
    lines += ["", _table(found), "", *_legend(found), "", *conclusions(found)]
    return "\n".join(lines)


def conclusions(found: dict) -> list[str]:
    """A line each: now, the best, the crossover, what the present setting loses."""
    lines, crossover, regret = [], found["crossover"], found["regret"]
    if found["loads"]:
        load = max(found["loads"], key=lambda each: each["share"])
        best = load["goodput"]
        lines.append(
            f"most of the time: {load['requests']:g} requests at a time, "
            f"{shown_speed(load['now'])} tokens/s, {load['ms_per_token']:.1f} ms a token; goodput "
            f"would make {shown_speed(best['value'])} ({shown_speed(best['low'])} to "
            f"{shown_speed(best['high'])}) with length {best['length']}"
        )
    if crossover["requests"] is None:
        lines.append(
            f"crossover: none up to {crossover['most']} requests at a time: drafts make most"
        )
    else:
        beyond = "" if crossover["known"] == SEEN else f", {_word(crossover['known'])}"
        lines.append(
            f"crossover: from {crossover['requests']} at a time on ({crossover['low']} to "
            f"{crossover['high'] or 'none'}{beyond}) no speculation makes most"
        )
    lines.append(
        f"the present setting makes {100 * regret['value']:.1f} % less than the best of "
        f"{_lengths(found)} at each load ({100 * regret['low']:.1f} to {100 * regret['high']:.1f} "
        "%)"
    )
    return lines


def _lengths(found: dict) -> str:
    names = list(found["loads"][0]["lengths"])[1:] if found["loads"] else ["0"]
    return f"lengths {names[0]} to {names[-1]}"


def _speeds(forecast: Forecast, loads: list[Load], lengths: tuple[int, ...]) -> np.ndarray:
    """Float [loads, lengths], right for what was measured at each load: its requests accept as many
    tokens as there, and times are off by the factor by which those of its own lengths are."""
    rows = []
    for load in loads:
        of_seconds, of_accepted = np.exp(np.array(forecast.luck[:2]) * load.doubt)
        own = {k: n for k, n in load.lengths.items() if k in lengths}
        usual = sum(n * forecast.accepted(k) for k, n in own.items()) / max(sum(own.values()), 1)
        accepts = load.accepted / usual if usual else 1.0
        steps = [(n, *forecast.step(load.requests, k, accepts)) for k, n in own.items()]
        seconds = sum(n * each for n, _, each in steps)
        present = (
            sum(n * tokens for n, tokens, _ in steps) / seconds if steps else load.tokens_per_second
        )
        factor = load.tokens_per_second / present * of_seconds
        found = [forecast.step(load.requests, k, accepts * of_accepted) for k in lengths]
        rows.append([factor * tokens / each for tokens, each in found])
    return np.array(rows).reshape(len(loads), len(lengths))


def _value(value: float, draws: np.ndarray) -> dict:
    low, high = np.quantile(draws, INTERVAL) if len(draws) else (value, value)
    low, high = min(low, value), max(high, value)
    return {
        "value": round(float(value), 1),
        "low": round(float(low), 1),
        "high": round(float(high), 1),
    }


def _crossover(forecasts: Forecasts) -> dict:
    """low, high: None as an end says that there is none up to `most`."""
    most = most_requests(forecasts.observation)
    found = forecasts.likeliest.crossover(most)
    draws = sorted(
        each if (each := draw.crossover(most)) is not None else np.inf for draw in forecasts.draws
    )
    low, high = (
        np.quantile(draws, INTERVAL, method="nearest")
        if draws
        else (found or np.inf, found or np.inf)
    )
    ends = [
        None if end == np.inf else int(end)
        for end in (min(low, found or np.inf), max(high, found or 0))
    ]
    known = None if found is None else forecasts.known(found, OFF)
    return {"requests": found, "low": ends[0], "high": ends[1], "most": most, "known": known}


def _regret(loads: list[Load], likeliest: np.ndarray, draws: np.ndarray, best: np.ndarray) -> dict:
    """Share of the best lengths' tokens that the present setting does not make, over the loads as
    long as they were."""
    shares, now = (
        np.array([load.share for load in loads]),
        np.array([load.tokens_per_second for load in loads]),
    )
    index = np.arange(len(loads))

    def regret(speeds: np.ndarray) -> float:
        return (
            float(1.0 - shares @ now / (shares @ np.maximum(speeds[index, 1 + best], 1e-9)))
            if len(loads)
            else 0.0
        )

    value = max(regret(likeliest), 0.0)
    found = [max(regret(speeds), 0.0) for speeds in draws] or [value]
    low, high = np.quantile(found, INTERVAL)
    return {
        "value": round(value, 4),
        "low": round(min(low, value), 4),
        "high": round(max(high, value), 4),
    }


def _table(found: dict) -> str:
    lengths = list(found["loads"][0]["lengths"]) if found["loads"] else []
    heads = ["requests", "time", "now", "ms/token", *lengths, "goodput"]
    rows = [heads]
    for load in found["loads"]:
        cells = [_cell(load["lengths"][name]) for name in lengths]
        best = f"{shown_speed(load['goodput']['value'])} (K={load['goodput']['length']})"
        share = f"{100 * load['share']:.0f} %"
        measured = [shown_speed(load["now"]), f"{load['ms_per_token']:.1f}"]
        rows.append([f"{load['requests']:g}", share, *measured, *cells, best])
    return "\n".join(aligned(rows))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _cell(value: dict) -> str:
    half = (value["high"] - value["low"]) / 2 / max(value["value"], 1e-9)
    return f"{shown_speed(value['value'])}±{100 * half:.0f}%{MARKS[value['known']]}"


def _legend(found: dict) -> list[str]:
    known = {each["known"] for load in found["loads"] for each in load["lengths"].values()}
    lines = [
        "tokens per second, ± half of a 90 % interval; off: a server without speculation; 0, 1, "
        "...: draft length"
    ]
    lines += [f"{MARKS[name]} {_word(name)}" for name in ("between", "beyond") if name in known]
    return lines


def _word(known: str) -> str:
    return {"between": "interpolated: not seen, between loads and lengths that were",
            "beyond": "extrapolated: beyond the loads or lengths that were seen"}.get(known, known)  # fmt: skip  # noqa: E501
