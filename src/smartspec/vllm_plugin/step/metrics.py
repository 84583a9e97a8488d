"""Prometheus metrics of steps. One process of vLLM schedules and counts; another answers /metrics.
Between them is a file of text (see stat_logger)."""

import time
from collections import Counter as Counts
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from smartspec.control import SafeController
from smartspec.observation.files import write_whole
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.handover import Handover
from smartspec.vllm_plugin.step.decision import EmittedTokens, Step

COUNTERS = {
    "steps": "Steps that fed tokens",
    "decode_rows": "Decoding requests, summed over steps",
    "verified_tokens": "Draft tokens verified",
    "accepted_tokens": "Draft tokens accepted",
    "emitted_tokens": "Tokens given to callers",
    "controller_errors": "Failures of the controller (served without drafts)",
    "overruled_steps": "Steps without drafts by the budget, or in order to learn",
}
MOST_NEW = 10_000  # steps that wait for a folder that hangs
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)


def metrics_path(folder: Path, instance_id: str, engine_index: int) -> Path:
    """The file of an engine's metrics: both processes know its number and the id of vLLM's
    configuration."""
    return folder / "vllm" / f"{instance_id}-{engine_index}.prom"


def metrics_writer(path: Path, registry: CollectorRegistry) -> Callable[[], None]:
    """Return a function that writes the metrics. A failed write is one warning; the next write has
    all."""
    file = Handover(path, "metrics")
    return lambda: file.write(lambda where: write_whole(where, generate_latest(registry)))


class Metrics:
    """The metrics of one engine, written to path at the start, and then at most every
    interval_seconds, by the thread of files."""

    def __init__(self, path: Path, engine_index: int, interval_seconds: float, files: FileThread):
        self._files, self._interval, self._write_time = files, interval_seconds, -float("inf")
        self._registry = CollectorRegistry()
        self._write_file = metrics_writer(path, self._registry)
        self._lock = Lock()  # of what is new
        self._engine = str(engine_index)
        self._last_num_errors = 0
        self._forget_new()
        text = (
            "Decoding requests whose drafts had this length (draft tokens verified), summed over "
            "steps"
        )
        self._lengths = Counter(
            "smartspec_chosen_lengths", text, ["engine", "length"], registry=self._registry
        )
        self._counters = {name: self._counter(name, text) for name, text in COUNTERS.items()}
        self._histograms = {
            "predicted": self._histogram(
                "predicted_step_seconds", "Step time the controller predicted", SECONDS
            ),
            "measured": self._histogram(
                "step_seconds", "Step time measured, from completion to completion", SECONDS
            ),
        }
        self._goodput = self._gauge(
            "goodput_tokens_per_second", "Tokens per second of the last step"
        )
        files.post(self, self._write)

    def observe(
        self, steps: list[tuple[Step, EmittedTokens]], controller: SafeController | None
    ) -> None:
        """Count finished steps. controller: None while step times are being learned."""
        with self._lock:
            for step, outcome in steps:
                self._count(step, outcome)
            if controller is not None:
                self._new_counts["controller_errors"] += (
                    controller.num_errors - self._last_num_errors
                )
                self._last_num_errors = controller.num_errors
        if steps:
            step, outcome = steps[-1]
            self._goodput.set(outcome.num_given / step.seconds)
            if len(self._new_seconds["measured"]) >= MOST_NEW:
                self._take_new()
            self._files.post(
                self, self._write, max(self._write_time + self._interval - time.monotonic(), 0.0)
            )

    def _count(self, step: Step, outcome: EmittedTokens) -> None:
        counts = self._new_counts
        counts["steps"] += 1
        counts["decode_rows"] += step.num_decoding
        counts["verified_tokens"] += step.num_verified
        counts["accepted_tokens"] += outcome.num_accepted
        counts["emitted_tokens"] += outcome.num_given
        counts["overruled_steps"] += step.is_overruled
        self._new_lengths.update(step.verified.values())
        self._new_lengths[0] += max(step.num_decoding - len(step.verified), 0)
        self._new_seconds["measured"].append(step.seconds)
        if step.predicted_seconds is not None:
            self._new_seconds["predicted"].append(step.predicted_seconds)

    def _write(self) -> None:
        self._write_time = time.monotonic()
        self._take_new()
        self._write_file()

    def _take_new(self) -> None:
        with self._lock:
            counts, lengths, all_seconds = self._new_counts, self._new_lengths, self._new_seconds
            self._forget_new()
        for name, count in counts.items():
            self._counters[name].inc(count)
        for length, count in lengths.items():
            self._lengths.labels(self._engine, str(length)).inc(count)
        for name, seconds in all_seconds.items():
            for value in seconds:
                self._histograms[name].observe(value)

    def _forget_new(self) -> None:
        """Prometheus' own objects lock at every call, which takes too long for every step."""
        self._new_counts: Counts[str] = Counts()
        self._new_lengths: Counts[int] = Counts()
        self._new_seconds: dict[str, list[float]] = {"predicted": [], "measured": []}

    def _counter(self, name: str, text: str):
        return Counter(f"smartspec_{name}", text, ["engine"], registry=self._registry).labels(
            self._engine
        )

    def _gauge(self, name: str, text: str):
        gauge = Gauge(
            f"smartspec_{name}",
            text,
            ["engine"],
            registry=self._registry,
            multiprocess_mode="mostrecent",
        )
        return gauge.labels(self._engine)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]):
        histogram = Histogram(
            f"smartspec_{name}", text, ["engine"], buckets=buckets, registry=self._registry
        )
        return histogram.labels(self._engine)
