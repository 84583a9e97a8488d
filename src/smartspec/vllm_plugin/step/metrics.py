"""Prometheus metrics of steps. One process of vLLM schedules and counts; another answers /metrics. Between them is a
file of text (see stat_logger)."""

import logging
import os
import time
from collections import Counter as Counts
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, write_to_textfile

from smartspec.control import SafeController
from smartspec.vllm_plugin.step.decision import EmittedTokens, Step

logger = logging.getLogger("vllm.smartspec")

MAX_AGE_SECONDS = 7 * 24 * 3600.0  # of files that engines before have left
COUNTERS = {
    "steps": "Steps that fed tokens",
    "decode_rows": "Decoding requests, summed over steps",
    "verified_tokens": "Draft tokens verified",
    "accepted_tokens": "Draft tokens accepted",
    "emitted_tokens": "Tokens emitted",
    "controller_errors": "Failures of the controller (served without drafts)",
    "overruled_steps": "Steps without drafts by the budget, or in order to learn",
}
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)


def metrics_path(folder: Path, instance_id: str, engine_index: int) -> Path:
    """The file of an engine's metrics: both processes know its number and the id of vLLM's configuration."""
    return folder / "vllm" / f"{instance_id}-{engine_index}.prom"


class MetricsFile:
    """The file of metrics. A failed write is one warning; counting goes on, and the next write has all."""

    def __init__(self, path: Path):
        self._path, self._is_unwritable = path, False

    def write(self, registry: CollectorRegistry) -> None:
        """Write it whole or not at all."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_to_textfile(os.fspath(self._path), registry)
        except OSError as error:
            if not self._is_unwritable:
                logger.warning("metrics cannot be written to %s (%s): /metrics shows old ones", self._path, error)
            self._is_unwritable = True
        else:
            self._is_unwritable = False


class Metrics:
    """The metrics of one engine, written to path after the first step, then at most every interval_seconds."""

    def __init__(self, path: Path, engine_index: int, interval_seconds: float):
        self._file, self._interval, self._write_time = MetricsFile(path), interval_seconds, -float("inf")
        self._registry = CollectorRegistry()
        self._engine = str(engine_index)
        self._last_num_errors = 0
        # Since the last write: Prometheus' own objects lock at every call, which takes too long for every step.
        self._new_counts: Counts[str] = Counts()
        self._new_lengths: Counts[int] = Counts()
        self._new_seconds: dict[str, list[float]] = {"predicted": [], "measured": []}
        text = "Decoding requests whose drafts had this length (draft tokens verified), summed over steps"
        self._lengths = Counter("smartspec_chosen_lengths", text, ["engine", "length"], registry=self._registry)
        self._counters = {name: self._counter(name, text) for name, text in COUNTERS.items()}
        self._histograms = {
            "predicted": self._histogram("predicted_step_seconds", "Step time the controller predicted", SECONDS),
            "measured": self._histogram("step_seconds", "Step time measured, from completion to completion", SECONDS),
        }
        self._goodput = self._gauge("goodput_tokens_per_second", "Tokens per second of the last step")
        # Every start of vLLM has a name of its own.
        for old in [*path.parent.glob("*.prom"), *path.parent.glob("*.onoff")]:
            with suppress(OSError):  # another engine may remove it too; a folder may be read-only
                if time.time() - old.stat().st_mtime > MAX_AGE_SECONDS:
                    old.unlink()

    def observe(self, steps: list[tuple[Step, EmittedTokens]], controller: SafeController | None) -> None:
        """Count finished steps. controller: None while step times are being learned."""
        for step, outcome in steps:
            self._count(step, outcome)
        if controller is not None:
            self._new_counts["controller_errors"] += controller.num_errors - self._last_num_errors
            self._last_num_errors = controller.num_errors
        now = time.monotonic()
        if steps and now - self._write_time >= self._interval:
            self._write_time = now
            step, outcome = steps[-1]
            self._goodput.set(outcome.num_emitted / step.seconds)
            self._write()

    def _count(self, step: Step, outcome: EmittedTokens) -> None:
        counts = self._new_counts
        counts["steps"] += 1
        counts["decode_rows"] += step.num_decoding
        counts["verified_tokens"] += step.num_verified
        counts["accepted_tokens"] += outcome.num_accepted
        counts["emitted_tokens"] += outcome.num_emitted
        counts["overruled_steps"] += step.is_overruled
        self._new_lengths.update(step.verified.values())
        self._new_lengths[0] += max(step.num_decoding - len(step.verified), 0)
        self._new_seconds["measured"].append(step.seconds)
        if step.predicted_seconds is not None:
            self._new_seconds["predicted"].append(step.predicted_seconds)

    def _write(self) -> None:
        for name, count in self._new_counts.items():
            self._counters[name].inc(count)
        for length, count in self._new_lengths.items():
            self._lengths.labels(self._engine, str(length)).inc(count)
        for name, seconds in self._new_seconds.items():
            for value in seconds:
                self._histograms[name].observe(value)
            seconds.clear()
        self._new_counts.clear()
        self._new_lengths.clear()
        self._file.write(self._registry)

    def _counter(self, name: str, text: str):
        return Counter(f"smartspec_{name}", text, ["engine"], registry=self._registry).labels(self._engine)

    def _gauge(self, name: str, text: str):
        gauge = Gauge(f"smartspec_{name}", text, ["engine"], registry=self._registry, multiprocess_mode="mostrecent")
        return gauge.labels(self._engine)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]):
        histogram = Histogram(f"smartspec_{name}", text, ["engine"], buckets=buckets, registry=self._registry)
        return histogram.labels(self._engine)
