"""Prometheus metrics of steps. One process of vLLM schedules and counts; another answers /metrics.
Between them is a file of text (see stat_logger)."""

import time
from collections import Counter as Counts
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from smartspec.control import SafeController
from smartspec.observation.files import write_whole
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.handover import Handover
from smartspec.vllm_plugin.settings import Settings
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
HISTOGRAMS = {
    "predicted_step_seconds": "Step time the controller predicted",
    "step_seconds": "Step time measured, from completion to completion",
}
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


def make_metrics(config, settings: Settings, files: FileThread) -> "Metrics":
    """Return the metrics of the engine with this configuration of vLLM."""
    engine_index = config.parallel_config.data_parallel_index
    path = metrics_path(settings.cache, config.instance_id, engine_index)
    return Metrics(path, engine_index, settings.metrics_seconds, files)


class Metrics:
    """The metrics of one engine, written to path at the start, and then at most every
    interval_seconds, by the thread of files."""

    def __init__(self, path: Path, engine_index: int, interval_seconds: float, files: FileThread):
        self._files, self._interval, self._write_time = files, interval_seconds, -float("inf")
        self._registry = CollectorRegistry()
        self._write_file = metrics_writer(path, self._registry)
        self._engine = str(engine_index)
        self._last_num_errors = 0
        text = (
            "Decoding requests whose drafts had this length (draft tokens verified), summed over "
            "steps"
        )
        self._lengths = Counter(
            "smartspec_chosen_lengths", text, ["engine", "length"], registry=self._registry
        )
        self._counters = {
            name: self._metric(Counter, name, text) for name, text in COUNTERS.items()
        }
        self._predicted, self._measured = (
            self._metric(Histogram, name, text, buckets=SECONDS)
            for name, text in HISTOGRAMS.items()
        )
        text = "Tokens per second of the last step"
        self._goodput = self._metric(
            Gauge, "goodput_tokens_per_second", text, multiprocess_mode="mostrecent"
        )
        files.post(self, self._write)

    def observe(
        self, steps: list[tuple[Step, EmittedTokens]], controller: SafeController | None
    ) -> None:
        """Count finished steps. controller: None while step times are being learned."""
        counts: Counts[str] = Counts()
        lengths: Counts[int] = Counts()
        for step, outcome in steps:
            counts["steps"] += 1
            counts["decode_rows"] += step.num_decoding
            counts["verified_tokens"] += step.num_verified
            counts["accepted_tokens"] += outcome.num_accepted
            counts["emitted_tokens"] += outcome.num_given
            counts["overruled_steps"] += step.is_overruled
            lengths.update(step.verified.values())
            lengths[0] += max(step.num_decoding - len(step.verified), 0)
            self._measured.observe(step.seconds)
            if step.predicted_seconds is not None:
                self._predicted.observe(step.predicted_seconds)
        if controller is not None:
            counts["controller_errors"] = controller.num_errors - self._last_num_errors
            self._last_num_errors = controller.num_errors
        for name, count in counts.items():
            self._counters[name].inc(count)
        for length, count in lengths.items():
            self._lengths.labels(self._engine, str(length)).inc(count)
        if steps:
            step, outcome = steps[-1]
            self._goodput.set(outcome.num_given / step.seconds)
            rest = self._write_time + self._interval - time.monotonic()
            self._files.post(self, self._write, max(rest, 0.0))

    def _write(self) -> None:
        self._write_time = time.monotonic()
        self._write_file()

    def _metric(self, kind: type, name: str, text: str, **options):
        """Return a metric of this engine."""
        return kind(
            f"smartspec_{name}", text, ["engine"], registry=self._registry, **options
        ).labels(self._engine)
