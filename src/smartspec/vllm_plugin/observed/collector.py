"""The observation in vLLM's /metrics: its sums, for `smartspec vllm observed URL`, and its
conclusions, for Grafana. The process that answers HTTP reads the files of the engines, and computes
again when one has changed."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

from prometheus_client import Metric
from prometheus_client.registry import Collector

from smartspec.observation.files import read_observation
from smartspec.observation.forecast import Forecasts
from smartspec.observation.records import Observation
from smartspec.observation.report import longest_of, summary
from smartspec.vllm_plugin.file_thread import SCRAPE_SECONDS, FileThread
from smartspec.vllm_plugin.handover import newest
from smartspec.vllm_plugin.observed.samples import TEXTS, Sample, samples_of

logger = logging.getLogger(__name__)

SPEED, NOW, CROSSOVER, REGRET = (
    f"smartspec_observed_{name}"
    for name in (
        "expected_tokens_per_second",
        "tokens_per_second",
        "crossover_requests",
        "regret_ratio",
    )
)
CONCLUSIONS = {
    SPEED: "Tokens per second that a draft length would make at a load that was seen",
    NOW: "Tokens per second measured at a load",
    CROSSOVER: "Requests at a time from which on no speculation makes most, left out if there are none",  # noqa: E501
    REGRET: "Share of the best length's tokens that the present setting does not make",
}


class ObservationCollector(Collector):
    """A source of samples. paths: of the engines' observations, in the order of their numbers.
    Missing or unreadable files are left out. Conclusions are computed in a thread, as answers of
    vLLM pass through this process: they are there with the next collection. files: the thread that
    reads, for which no collection waits long."""

    def __init__(self, paths: list[Path], files: FileThread | None = None):
        self._paths, self._files = paths, files or FileThread()
        self._times: tuple[float, ...] = ()
        self._sums: list[Metric] = []
        self._conclusions: list[Metric] = []
        self._thread: Thread | None = None

    def describe(self) -> list[Metric]:
        """Return nothing: no sample is known before the first file."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return the samples of the files as they are now."""
        with suppress(TimeoutError):  # a folder that hangs: the last ones
            self._files.call(self._look, SCRAPE_SECONDS)
        yield from self._sums
        yield from self._conclusions

    def wait(self) -> None:
        """Wait for the conclusions."""
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        try:
            found = {n: file for n, path in enumerate(self._paths) if (file := newest(path))}
            times = tuple(file.stat().st_mtime for file in found.values())
            if times != self._times:
                self._times = times
                self._read(found)
        except (OSError, ValueError) as error:
            logger.warning("what was observed is left out of /metrics: %s", error)
            self._sums = self._conclusions = []

    def _read(self, files: dict[int, Path]) -> None:
        observations = {n: read_observation(path) for n, path in files.items()}
        self._sums = _families(
            TEXTS, (each for n, part in observations.items() for each in samples_of(str(n), part))
        )
        if observations and (self._thread is None or not self._thread.is_alive()):
            whole = Observation.merged(list(observations.values()))
            self._thread = Thread(target=self._compute, args=(whole,), daemon=True)
            self._thread.start()

    def _compute(self, observation: Observation) -> None:
        self._conclusions = _families(CONCLUSIONS, _conclusions(observation))


def _families(texts: dict[str, str], samples: Iterable[Sample]) -> list[Metric]:
    """Return the families that have samples."""
    families = {name: Metric(name, text, "gauge") for name, text in texts.items()}
    for name, labels, value in samples:
        families[name].add_sample(name, labels, value)
    return [family for family in families.values() if family.samples]


def _conclusions(observation: Observation) -> Iterator[Sample]:
    """Return the conclusions, without intervals. Nothing where too little was observed."""
    try:
        figures = summary(Forecasts(observation, longest_of(observation), num_draws=0))
    except ValueError:
        return
    for load in figures["loads"]:
        requests = {"requests": f"{load['requests']:g}"}
        yield NOW, requests, load["now"]
        for name, each in load["lengths"].items():
            yield SPEED, requests | {"length": name, "known": each["known"]}, each["value"]
    if figures["crossover"]["requests"] is not None:
        yield CROSSOVER, {}, float(figures["crossover"]["requests"])
    yield REGRET, {}, figures["regret"]["value"]
