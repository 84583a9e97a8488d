"""What more training would bring, from the learning curve of a head so far.

The acceptance of a draft grows with the logarithm of the tokens that its head was trained on
(Scylla, Yan et al. 2025, arXiv 2505.07858, theorem 1.1). So survival at each position is fitted as
a + b log10(tokens), by least squares over the lines of the curve. Tokens of a step are one more
than their sum, so they follow the same law.

A curve is one run, whose learning rate falls and whose lines follow each other. The interval knows
only how far the lines lie from the law. The test on the second half of the curve says how far the
law was off.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smartspec.control.latency.model import LatencyModel

LEAST_LINES = 4
NUM_RESAMPLES = 2000
INTERVAL = (5, 95)  # percentiles
CONTEXT_TOKENS = 512


@dataclass(frozen=True)
class Curve:
    """tokens: int [N], trained tokens, ascending. survival: float [N, K], chance that the first j
    tokens of a chain are all right."""

    tokens: np.ndarray
    survival: np.ndarray

    @property
    def emitted(self) -> np.ndarray:
        """Tokens of a step with the longest chain: float [N]."""
        return 1.0 + self.survival.sum(axis=1)


@dataclass(frozen=True)
class Forecast:
    """After so many trained tokens. survival: float [K]. emitted: tokens of a step with the longest
    chain; low, high: its 90 % interval."""

    tokens: int
    survival: np.ndarray
    emitted: float
    low: float
    high: float


def read_curve(path: Path) -> Curve:
    """A curve.jsonl. ValueError where it cannot be read, or has too few lines to fit."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        by_tokens = {int(line["tokens"]): np.cumprod(line["acceptance"]) for line in lines}
    except OSError as error:
        raise ValueError(
            f"cannot read {path} ({error.strerror}): give the folder that a head was trained to"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no learning curve ({error!r}): train the head with python -m lab.train"
        ) from None
    by_tokens.pop(0, None)
    if len(by_tokens) < LEAST_LINES:
        raise ValueError(
            f"{path} has {len(by_tokens)} lines of different tokens: a forecast needs {LEAST_LINES}"
        )
    tokens = sorted(by_tokens)
    return Curve(np.array(tokens), np.array([by_tokens[each] for each in tokens]))


def forecast(curve: Curve, tokens: Iterable[int], seed: int = 0) -> list[Forecast]:
    """By trained tokens. The interval is of fits to resampled residuals, a residual added; seed: of
    what is drawn."""
    design, rng = _design(curve.tokens), np.random.default_rng(seed)
    law = _fit(design, curve.survival)
    residuals = (curve.survival - design @ law) * np.sqrt(len(design) / (len(design) - 2))
    drawn = rng.integers(0, len(design), size=(NUM_RESAMPLES, len(design) + 1))
    laws = [_fit(design, design @ law + residuals[rows[:-1]]) for rows in drawn]
    found = []
    for each in tokens:
        at = _design(np.array([each]))
        survival = np.clip(at @ law, 0.0, 1.0)[0]
        sums = [
            1.0 + (at @ one)[0].sum() + residuals[rows[-1]].sum()
            for one, rows in zip(laws, drawn, strict=True)
        ]
        low, high = np.clip(np.percentile(sums, INTERVAL), 1.0, 1.0 + len(survival))
        found.append(Forecast(each, survival, 1.0 + float(survival.sum()), float(low), float(high)))
    return found


def miss_of_second_half(curve: Curve) -> float:
    """Tokens of a step on the last line, less what the law says that is fitted to the first half of
    the lines."""
    half = max(2, len(curve.tokens) // 2)
    law = _fit(_design(curve.tokens[:half]), curve.emitted[:half])
    return float(curve.emitted[-1] - _design(curve.tokens[-1:])[0] @ law)


def speeds(costs: LatencyModel, survival: np.ndarray) -> np.ndarray:
    """Tokens per second of one request by length of chain, 0 to K: float [K + 1]. costs: of a
    machine that runs the head; the pass of a draft token is that of its first drafter with
    passes."""
    lengths = np.arange(len(survival) + 1)
    curve = next(filter(None, costs.drafts), None)
    if curve is None:
        raise ValueError(
            "these costs have no pass of a head: give the decision log of a server that runs one"
        )
    target = costs.target.seconds(1 + lengths, CONTEXT_TOKENS + 1 + lengths, 1)
    draft = curve.seconds(1, CONTEXT_TOKENS + 1, 1)
    return np.cumsum([1.0, *survival]) / (target + lengths * draft)


def _design(tokens: np.ndarray) -> np.ndarray:
    return np.stack([np.ones(len(tokens)), np.log10(tokens)], axis=1)


def _fit(design: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(design, values, rcond=None)[0]
