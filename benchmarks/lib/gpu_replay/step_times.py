"""The time of a step of vLLM on a GPU, as `benchmarks/gpu_cells.py` measured it with a head.

vLLM schedules steps ahead, so part of a prompt's time falls into the step after it. A step with a
prompt is therefore taken to last at least as long as one without.
"""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parents[3] / "docs" / "results"
CARDS = ("h100", "h200")
WHOLE_CARD = CARDS[0]  # on which all lengths were measured, at all levels
LENGTHS = (0, 1, 3, 5)
LEVELS = (1, 4, 16, 64, 128, 256)
LEAST_STEPS = 3  # of a kind: the median of fewer says little
USUAL_PROMPTS = 3  # the measured steps with prompts have one to three
PROMPT = 128
SECONDS_PER_PROMPT_TOKEN = 25e-6  # of further prompts
JITTER = 0.03  # standard deviation of log seconds


@dataclass(frozen=True)
class StepTimes:
    """plain, mixed: seconds of steps without and with prompts, by length and level: float [4,
    6]."""

    plain: np.ndarray
    mixed: np.ndarray

    def seconds(self, length: int, num_requests: int, num_prompts: int) -> float:
        """Of a step of that many requests, prompts included, that verifies length tokens a row."""
        times = (self.mixed if num_prompts else self.plain)[LENGTHS.index(length)]
        further = SECONDS_PER_PROMPT_TOKEN * PROMPT * max(num_prompts - USUAL_PROMPTS, 0)
        return float(np.interp(num_requests, LEVELS, times)) + further


def read_step_times(card: str) -> StepTimes:
    """Of the card's published run. What it lacks has the other card's time, times the ratio of the
    two cards at the nearest length that both have. ValueError for an unknown card."""
    if card not in CARDS:
        raise ValueError(f"unknown card {card!r}: use {' or '.join(CARDS)}")
    medians = {name: _medians(RESULTS / f"{name}.jsonl") for name in {card, WHOLE_CARD}}
    own, whole = medians[card], medians[WHOLE_CARD]
    plain = np.array([_times(own, whole, length, False) for length in LENGTHS])
    mixed = np.array([_times(own, whole, length, True) for length in LENGTHS])
    return StepTimes(plain, np.maximum(plain, mixed))


Medians = dict[tuple[int, bool], dict[int, float]]


def _medians(path: Path) -> Medians:
    """Seconds by (length, with prompts) and level, of cells of one length."""
    found: dict[tuple, list[tuple[float, int]]] = defaultdict(list)
    for cell in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        kind, _, length = cell.get("cell", "").partition(":")
        if kind != "stock" or cell["job"] != "eagle3" or "alike" not in cell:
            continue
        for step in cell["alike"]:
            decodes = cell["level"] > 1 or not step["prefill"]  # else the step is a prompt alone
            of_length = step["verified_length"] == int(length)
            if step["steps"] >= LEAST_STEPS and of_length and decodes:
                key = int(length), step["prefill"], cell["level"]
                found[key].append((step["ms"] / 1e3, step["steps"]))
    medians: Medians = defaultdict(dict)
    for (length, kind, level), steps in sorted(found.items()):
        seconds, counts = zip(*steps, strict=True)
        medians[length, kind][level] = float(np.average(seconds, weights=counts))
    return medians


def _times(own: Medians, whole: Medians, length: int, kind: bool) -> np.ndarray:
    """float [len(LEVELS)]."""
    if (length, kind) in own:
        return _at_levels(own[length, kind])
    nearest = min((k for k, other in own if other == kind), key=lambda k: abs(k - length))
    ratio = _at_levels(own[nearest, kind]) / _at_levels(whole[nearest, kind])
    return ratio * _at_levels(whole[length, kind])


def _at_levels(medians: dict[int, float]) -> np.ndarray:
    """Between levels and beyond the largest on straight lines: float [len(LEVELS)]."""
    levels, seconds = list(medians), list(medians.values())
    if levels[-1] < LEVELS[-1]:
        slope = (seconds[-1] - seconds[-2]) / (levels[-1] - levels[-2])
        seconds.append(seconds[-1] + slope * (LEVELS[-1] - levels[-1]))
        levels.append(LEVELS[-1])
    return np.interp(LEVELS, levels, seconds)
