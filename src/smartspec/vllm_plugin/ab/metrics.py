"""Prometheus metrics of speculation on or off and of the results of `--act`, in a file beside that
of the others."""

from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge

from smartspec.vllm_plugin.ab.comparison import GUARD
from smartspec.vllm_plugin.ab.results import Level
from smartspec.vllm_plugin.ab.windows import WINDOW
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.step.metrics import metrics_path, metrics_writer
from smartspec.vllm_plugin.switch import SWITCH

GAUGES = {
    "off": (
        "1 while SmartSpec decides no draft lengths and there are no drafts, for this reason",
        "reason",
    ),
    "guard_ratio": ("Speed of a request of that without drafts, as the guard measured it last",),
    "ab_since_seconds": (
        "When the oldest pair of windows of --act ended, in seconds of the epoch",
    ),
    "ab_pairs": (
        "Pairs of windows of --act, by the least requests at a time of a power of two",
        "requests",
    ),
    "ab_ratio": ("Speed of a request with speculation, of that without", "requests"),
    "ab_ratio_low": ("Lower end of the interval of that ratio, 95 %", "requests"),
    "ab_ratio_high": ("Upper end of the interval of that ratio, 95 %", "requests"),
    "ab_request_tokens_per_second": ("Tokens per second and request", "requests", "speculation"),
    "ab_tokens_per_second": (
        "Tokens per second of the time in which there were requests",
        "requests",
        "speculation",
    ),
}


def toggle_metrics_path(folder: Path, instance_id: str, engine_index: int) -> Path:
    """The file in which an engine leaves these metrics."""
    return metrics_path(folder, instance_id, engine_index).with_suffix(".onoff")


class ToggleMetrics:
    """The metrics of one engine, written to path whenever one changes, by the thread of files."""

    def __init__(self, path: Path, engine_index: int, files: FileThread):
        self._files, self._engine = files, str(engine_index)
        self.registry = CollectorRegistry()
        self._write_file = metrics_writer(path, self.registry)
        self._gauges = {
            name: Gauge(f"smartspec_{name}", text, ["engine", *labels], registry=self.registry)
            for name, (text, *labels) in GAUGES.items()
        }
        text = "Times the guard switched speculation off"
        self._guard_stops = Counter(
            "smartspec_guard_off", text, ["engine"], registry=self.registry
        ).labels(self._engine)

    def set_reason(self, reason: str | None) -> None:
        """Set the reason for which the scheduler has speculation off; None while it is on."""
        for each in (GUARD, WINDOW):
            self._set("off", float(each == reason), each)
        self._write()

    def set_switch(self, is_off: bool) -> None:
        """Set the operator's switch, which is seen without a request, too."""
        self._set("off", float(is_off), SWITCH)
        self._write()

    def set_ratio(self, ratio: float) -> None:
        """Set the ratio that the guard measured last."""
        self._set("guard_ratio", ratio)
        self._write()

    def count_guard(self) -> None:
        """Count a time that the guard switches speculation off."""
        self._guard_stops.inc()

    def set_results(self, levels: Mapping[str, Level], since: float) -> None:
        """Set the results of --act so far. since: when the oldest pair ended."""
        self._set("ab_since_seconds", since)
        for name, level in levels.items():
            self._set("ab_pairs", level.pairs, name)
            self._set("ab_ratio", level.ratio, name)
            if (interval := level.interval) is not None:
                for end, value in zip(("low", "high"), interval, strict=True):
                    self._set(f"ab_ratio_{end}", value, name)
            for state, side in (("on", level.on), ("off", level.off)):
                self._set("ab_request_tokens_per_second", side.speed, name, state)
                self._set("ab_tokens_per_second", side.tokens_per_second, name, state)
        self._write()

    def _set(self, name: str, value: float, *labels: str) -> None:
        self._gauges[name].labels(self._engine, *labels).set(value)

    def _write(self) -> None:
        self._files.post(self, self._write_file)
