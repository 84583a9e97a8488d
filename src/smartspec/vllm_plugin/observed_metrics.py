"""What is observed in vLLM's /metrics: its sums, for `smartspec vllm observed URL`, and what they say, for Grafana. The
process that answers HTTP reads the files of the engines, and computes again when one has changed."""

import logging
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.registry import Collector

from smartspec.observation.files import read_observation
from smartspec.observation.forecast import Forecasts
from smartspec.observation.records import Observation
from smartspec.observation.report import longest_of, summary
from smartspec.vllm_plugin.metrics_text import TEXTS, samples_of

logger = logging.getLogger(__name__)

SPEED, NOW, CROSSOVER, REGRET = (
    f"smartspec_observed_{name}"
    for name in ("expected_tokens_per_second", "tokens_per_second", "crossover_requests", "regret_ratio")
)
EXPECTED = {
    SPEED: "Tokens per second that a draft length would make at a load that was seen",
    NOW: "Tokens per second measured at a load",
    CROSSOVER: "Requests at a time from which on no speculation makes most, left out if there are none",
    REGRET: "Share of the best length's tokens that the present setting does not make",
}


class ObservedFiles(Collector):
    """paths: of the engines' observations, in the order of their numbers. Files that are missing or unreadable are left
    out."""

    def __init__(self, paths: list[Path]):
        self._paths = paths
        self._changed: tuple[float, ...] = ()
        self._families: list[Metric] = []

    def describe(self) -> list[Metric]:
        """Nothing is known before the first file."""
        return []

    def collect(self) -> Iterator[Metric]:
        """What the files say now."""
        changed = tuple(path.stat().st_mtime if path.exists() else 0.0 for path in self._paths)
        if changed != self._changed:
            self._changed = changed
            try:
                self._families = self._read()
            except (OSError, ValueError) as error:
                logger.warning("what was observed is left out of /metrics: %s", error)
                self._families = []
        yield from self._families

    def _read(self) -> list[Metric]:
        found = {n: read_observation(path) for n, path in enumerate(self._paths) if path.exists()}
        families = {name: Metric(name, text, "gauge") for name, text in (TEXTS | EXPECTED).items()}
        for number, observation in found.items():
            for name, labels, value in samples_of(str(number), observation):
                families[name].add_sample(name, labels, value)
        if found:
            for name, labels, value in _expected(Observation.merged(list(found.values()))):
                families[name].add_sample(name, labels, value)
        return [family for family in families.values() if family.samples]


def _expected(observation: Observation) -> Iterator[tuple[str, dict[str, str], float]]:
    """What it says, without intervals. Nothing where too little was observed."""
    try:
        found = summary(Forecasts(observation, longest_of(observation), num_draws=0))
    except ValueError:
        return
    for load in found["loads"]:
        requests = {"requests": f"{load['requests']:g}"}
        yield NOW, requests, load["now"]
        for name, each in load["lengths"].items():
            yield SPEED, requests | {"length": name, "known": each["known"]}, each["value"]
    if found["crossover"]["requests"] is not None:
        yield CROSSOVER, {}, float(found["crossover"]["requests"])
    yield REGRET, {}, found["regret"]["value"]
