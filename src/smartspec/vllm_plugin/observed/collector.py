"""What was observed, in vLLM's /metrics: the paths of the engines' files, for `smartspec vllm
observed URL`, and conclusions for Grafana. The process that answers HTTP reads the files, and
computes again when one has changed."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.registry import Collector

from smartspec.observation.files import read_observation
from smartspec.observation.forecast import Forecasts
from smartspec.observation.records import Observation
from smartspec.observation.report import longest_of, summary
from smartspec.vllm_plugin.file_thread import SCRAPE_SECONDS, FileThread
from smartspec.vllm_plugin.handover import newest

logger = logging.getLogger(__name__)

TEXTS = {
    "expected_tokens_per_second": "Tokens per second that a draft length would make at a load that was seen",  # noqa: E501
    "tokens_per_second": "Tokens per second measured at a load",
    "crossover_requests": "Requests at a time from which on no speculation makes most, left out if there are none",  # noqa: E501
    "regret_ratio": "Share of the best length's tokens that the present setting does not make",
}
Sample = tuple[str, dict[str, str], float]


class ObservationCollector(Collector):
    """A source of samples. paths: of the engines' observations. Missing or unreadable files are
    left out. files: the thread that reads and computes, for which no collection waits long:
    conclusions that have changed are there with the next one."""

    def __init__(self, paths: list[Path], files: FileThread):
        self._paths, self._files = paths, files
        self._found: list[Path] = []
        self._times: list[float] = []
        self._families: list[Metric] = []

    def describe(self) -> list[Metric]:
        """Return nothing: no sample is known before the first file."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return the paths of the files, and the conclusions as they were last."""
        with suppress(OSError):  # a folder that hangs, or cannot be seen: the last ones
            self._found = self._files.call(self._find, SCRAPE_SECONDS)
        self._files.post(self, self._look)
        info = Metric("smartspec_observation_info", "File of an engine's observation", "gauge")
        for path in self._found:
            info.add_sample(info.name, {"path": str(path.absolute())}, 1.0)
        yield from [info] if info.samples else []
        yield from self._families

    def _find(self) -> list[Path]:
        return [file for path in self._paths if (file := newest(path))]

    def _look(self) -> None:
        try:
            times = [file.stat().st_mtime for file in self._found]
            if times and times != self._times:
                self._times = times
                parts = list(map(read_observation, self._found))
                self._families = _families(Observation.merged(parts))
        except (OSError, ValueError) as error:  # a file is cut, or too little was observed
            logger.info("what was observed is left out of /metrics: %s", error)
            self._families = []


def _families(observation: Observation) -> list[Metric]:
    """Return the families that have samples, without intervals."""
    families = {
        name: Metric(f"smartspec_observed_{name}", text, "gauge") for name, text in TEXTS.items()
    }
    for name, labels, value in _samples(observation):
        families[name].add_sample(families[name].name, labels, value)
    return [family for family in families.values() if family.samples]


def _samples(observation: Observation) -> Iterator[Sample]:
    figures = summary(Forecasts(observation, longest_of(observation), num_draws=0))
    for load in figures["loads"]:
        requests = {"requests": f"{load['requests']:g}"}
        yield "tokens_per_second", requests, load["now"]
        for name, each in load["lengths"].items():
            labels = requests | {"length": name, "known": each["known"]}
            yield "expected_tokens_per_second", labels, each["value"]
    if figures["crossover"]["requests"] is not None:
        yield "crossover_requests", {}, float(figures["crossover"]["requests"])
    yield "regret_ratio", {}, figures["regret"]["value"]
