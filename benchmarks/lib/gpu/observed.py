"""Measured cells as the observation that the plugin would have made of them, and what it predicts
of the others.

A cell's mean step is exact. How its prompts were spread over steps follows from the share of steps
that had some: as in a closed loop of independent requests, prompts come at random.
"""

from collections import Counter
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

import numpy as np

from lib.gpu.client import PROMPT
from lib.gpu.plan import named
from lib.gpu.tables import Cells, markdown_lines
from smartspec.observation.card import Card
from smartspec.observation.forecast import INTERVAL, OFF, Forecasts
from smartspec.observation.records import DraftOutcome, Observation, StepSize

LENGTH_0 = "stock:0"
CONTEXT = PROMPT + 96  # tokens of a request: its prompt and half of an answer
SPREAD = 0.1  # of the times of single steps, which cells do not tell
SETUP = {
    "engine": "vllm", "model": "llama-3.1-8b", "method": "eagle3", "draft_model": "eagle3-8b",
    "dtype": "torch.bfloat16", "quantization": "None", "has_passes": True, "max_requests": 256,
    "longest": 5,
}  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """Of a cell: tokens per second and milliseconds of a mean step, predicted and measured. low,
    high: interval of the first. is_seen: the prediction was made from this cell, too."""

    level: int
    policy: str
    predicted: float
    measured: float
    low: float
    high: float
    predicted_ms: float
    measured_ms: float
    known: str
    is_seen: bool

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0

    @property
    def step_error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1.0


def fixed_cells(lines: Cells, note: str = named((0.5, 0.85))) -> Cells:
    """Of one length each, with a draft head, and without speculation."""
    return [
        line
        for line in lines
        if line.get("job") in ("off", "eagle3")
        and (
            line.get("cell") == "off"
            or (line.get("cell", "").startswith("stock:") and line["note"] == note)
        )
    ]


def observation_of(cells: Cells, setup: dict | None = None) -> Observation:
    """Of cells with a draft head."""
    observation, rng = Observation({**SETUP, **(setup or {})}), np.random.default_rng(0)
    for cell in cells:
        length, rate = length_of(cell), -log(max(1.0 - cell["with_prefill"], 1e-9))
        sizes = [_step(cell, length, int(count), rng) for count in _counts(rate, cell["steps"])]
        scale = cell["step_ms"] / 1e3 / np.mean([size.seconds for size in sizes])
        observation.add_steps(
            [length] * len(sizes),
            [StepSize(**vars(s) | {"seconds": s.seconds * scale}) for s in sizes],
        )
        observation.add_outcomes(_outcomes(cell, length).items())
        observation.arrivals.requests += round(sum(size.prefills for size in sizes))
        observation.arrivals.prompt_tokens += PROMPT * round(sum(size.prefills for size in sizes))
        observation.arrivals.seconds += cell["steps"] * cell["step_ms"] / 1e3
    return observation


def predictions(cells: Cells, observed: Observation, levels: tuple[int, ...]) -> list[Prediction]:
    """Of all cells, from an observation of some levels; the worst first."""
    forecasts = Forecasts(observed, max(map(length_of, cells)))
    found = []
    for cell in cells:
        level, length = cell["level"], OFF if cell["cell"] == "off" else length_of(cell)
        emitted, seconds = forecasts.likeliest.step(level, length)
        speeds = [draw.tokens_per_second(level, length) for draw in forecasts.draws]
        low, high = np.quantile(speeds, INTERVAL)
        is_seen = level in levels and length != OFF
        known = forecasts.known(level, length)
        found.append(
            Prediction(
                level, cell["cell"], emitted / seconds, cell["tokens_per_s"], low, high,
                1e3 * seconds, cell["step_ms"], known, is_seen,
            )
        )  # fmt: skip
    return sorted(found, key=lambda each: (each.is_seen, -abs(each.error)))


def shown(found: list[Prediction]) -> str:
    """A table, and how many of the cells that were not seen are within 5 %."""
    rows = [
        [
            p.level, p.policy, f"{p.measured:,.0f}", f"{p.predicted:,.0f}",
            f"{p.low:,.0f} to {p.high:,.0f}",
            f"{100 * p.error:+.1f} "
            "%", f"{100 * p.step_error:+.1f} %", "seen" if p.is_seen else p.known,
        ]
        for p in found
    ]  # fmt: skip
    heads = [
        "requests",
        "policy",
        "measured",
        "predicted",
        "interval",
        "error",
        "of the step time",
        "known",
    ]
    new = [p for p in found if not p.is_seen]
    within = [sum(abs(error) <= 0.05 for error in errors) for errors in ([p.error for p in new],
              [p.step_error for p in new])]  # fmt: skip
    inside = sum(p.low <= p.measured <= p.high for p in new)
    return (
        f"{markdown_lines(heads, rows)}\n\nOf {len(new)} cells that were not seen, {within[0]} are "
        f"within 5 % in tokens per second and {within[1]} in the time of a step; {inside} are in "
        "their interval."
    )


def print_predictions(lines: Cells, levels: tuple[int, ...]) -> None:
    """From the cells with a draft head at these levels. ValueError where there are none."""
    cells = fixed_cells(lines)
    seen = [cell for cell in cells if cell["level"] in levels and cell["cell"] != "off"]
    if not seen:
        raise ValueError(
            f"no cell with a draft head has {' or '.join(map(str, levels))} requests: use other "
            "--levels"
        )
    print(shown(predictions(cells, observation_of(seen, device_of(lines)), levels)))


def write_card(lines: Cells, path: Path) -> None:
    """Of all cells with a draft head and the stated acceptance. ValueError where there are none."""
    cells = [cell for cell in fixed_cells(lines) if cell["cell"] != "off"]
    if not cells:
        raise ValueError("no cell has a draft head: run job eagle3")
    Card.of(observation_of(cells, device_of(lines))).write(path)


def device_of(lines: Cells) -> dict:
    """Of the run."""
    began = next((line for line in lines if "device" in line), {})
    return {"device": began.get("device", ""), "version": began.get("vllm", "")}


def length_of(cell: dict) -> int:
    return 0 if cell["cell"] == "off" else int(cell["cell"].removeprefix("stock:"))


def _counts(rate: float, steps: int) -> np.ndarray:
    """Prefills of each step: as often as chance says, without its noise."""
    chances, chance, left = [], exp(-rate), steps
    for count in range(20):
        here = min(round(steps * chance), left)
        chances += [count] * here
        left -= here
        chance *= rate / (count + 1)
    return np.array((chances + [1 if rate > 0.01 else 0] * left)[:steps])


def _step(cell: dict, length: int, prefills: int, rng: np.random.Generator) -> StepSize:
    decoding = max(cell["level"] - prefills, 0)
    verified = round(decoding * cell["verified"])
    emitted = cell["tokens_per_s"] * cell["step_ms"] / 1e3
    return StepSize(
        seconds=cell["step_ms"] / 1e3 * float(np.exp(SPREAD * rng.standard_normal())),
        requests=cell["level"],
        decoding=decoding,
        context_tokens=cell["level"] * CONTEXT,
        fed_tokens=decoding + verified + prefills * PROMPT,
        verified_tokens=verified,
        emitted_tokens=emitted,
        prefills=prefills,
        prefill_tokens=prefills * PROMPT,
        passes=max(length, 1),
    )


def _outcomes(cell: dict, length: int) -> Counter[DraftOutcome]:
    """Of a draft token's chance that gives the accepted tokens that were counted."""
    rows, found = round(cell["rows"] * cell["steps"]), Counter()
    accepted = cell["tokens_per_row"] - 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        chance = (low + high) / 2
        low, high = (
            (chance, high)
            if sum(chance**d for d in range(1, length + 1)) < accepted
            else (low, chance)
        )
    for depth in range(length + 1):
        share = low**depth * (1.0 if depth == length else 1.0 - low)
        found[DraftOutcome("", length, length, depth)] += round(share * rows)
    return found
