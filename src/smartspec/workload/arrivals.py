"""The times at which requests arrive: a Poisson process, a rate that changes, or a recorded trace.
(A closed loop has no arrival times of its own.)"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TRACE_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
# Beyond any use, and short of what overflows or fills the memory.
MIN_RATE, MAX_RATE = 1e-6, 1e9
MAX_ARRIVAL_SECONDS = 1e12
MAX_TOKENS = 10_000_000


@dataclass(frozen=True)
class Trace:
    """Recorded traffic. All arrays are [N]: seconds from the start (never decreasing), token counts
    per request."""

    arrival_seconds: np.ndarray
    num_prompt_tokens: np.ndarray
    num_output_tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.arrival_seconds)


def check_rate(rate: float) -> None:
    """ValueError if nothing can arrive at that rate, requests per second."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise ValueError(
            "the request rate must be a positive number of requests per second, "
            f"between {MIN_RATE:g} and {MAX_RATE:g}, got {rate}"
        )


def poisson_arrivals(rate: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Arrival times in seconds, float64 [count], of a Poisson process with `rate` requests per
    second."""
    check_rate(rate)
    return rng.exponential(1.0 / rate, size=count).cumsum()


def step_arrivals(
    steps: Sequence[tuple[float, float]], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Poisson arrivals whose rate changes: times in seconds, float64 [N], and the step of each,
    int64 [N].

    steps: requests per second and seconds of each. There are rate x seconds requests in a step,
    rounded.
    """
    times, numbers, begin = [np.zeros(0)], [np.zeros(0, dtype=np.int64)], 0.0
    for number, (rate, seconds) in enumerate(steps):
        check_rate(rate)
        count = round(rate * seconds)
        # a Poisson process, given the number
        times.append(begin + np.sort(rng.uniform(0, seconds, count)))
        numbers.append(np.full(count, number))
        begin += seconds
    return np.concatenate(times), np.concatenate(numbers)


def read_trace(path: str | Path, *, time_scale: float = 1.0, limit: int | None = None) -> Trace:
    """Read a CSV with the columns arrival_s, prompt_tokens and output_tokens, sorted by arrival.

    time_scale: the replay is this many times faster than the recording. limit: only the first rows.
    Raises ValueError naming the file and the line: a row is not three numbers, a count is below 1
    or beyond MAX_TOKENS, or an arrival goes back in time.
    """
    if not MIN_RATE <= time_scale <= MAX_RATE:
        raise ValueError(
            f"time_scale must be a positive number, got {time_scale}: use one between {MIN_RATE:g} "
            f"and {MAX_RATE:g}"
        )
    try:
        # spreadsheets begin with a byte order mark
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = _parse_rows(csv.DictReader(file), path, limit)
    except OSError as error:
        raise ValueError(f"cannot read the trace file {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8 ({error})") from error
    if not rows:
        raise ValueError(f"the trace {path} holds no requests")
    arrivals, num_prompt_tokens, num_output_tokens = zip(*rows, strict=True)
    return Trace(
        np.array(arrivals, dtype=np.float64) / time_scale,
        np.array(num_prompt_tokens, dtype=np.int64),
        np.array(num_output_tokens, dtype=np.int64),
    )


def _parse_rows(
    reader: csv.DictReader, path: str | Path, limit: int | None
) -> list[tuple[float, int, int]]:
    missing = [name for name in TRACE_COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(
            f"{path}, line 1: no column {', '.join(missing)}; expected {','.join(TRACE_COLUMNS)}"
        )
    rows: list[tuple[float, int, int]] = []
    for row in reader:
        if limit is not None and len(rows) == limit:
            break
        rows.append(
            _parse_row(row, f"{path}, line {reader.line_num}", rows[-1][0] if rows else 0.0)
        )
    return rows


def _parse_row(row: dict[str, str], where: str, previous_arrival: float) -> tuple[float, int, int]:
    values = [row[name] for name in TRACE_COLUMNS]
    try:
        arrival, *counts = float(values[0]), int(values[1]), int(values[2])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{where}: expected a number of seconds and two token counts, got {values}"
        ) from error
    if not abs(arrival) <= MAX_ARRIVAL_SECONDS:
        raise ValueError(
            f"{where}: arrival_s {values[0]} is not a number of seconds up to "
            f"{MAX_ARRIVAL_SECONDS:g}"
        )
    if arrival < previous_arrival:
        raise ValueError(
            f"{where}: arrival_s {values[0]} comes before {previous_arrival:g}; sort the trace by "
            "arrival"
        )
    if not all(1 <= count <= MAX_TOKENS for count in counts):
        raise ValueError(
            f"{where}: token counts must be at least 1 and at most {MAX_TOKENS}, "
            f"got {counts[0]} and {counts[1]}"
        )
    return arrival, *counts
