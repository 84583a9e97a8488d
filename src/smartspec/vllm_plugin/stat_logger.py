"""The metrics of the engines in vLLM's own registry, and so in its /metrics. vLLM loads the stat
logger in the process that answers HTTP. It does nothing unless SmartSpec's scheduler is in use."""

import logging
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import REGISTRY, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from smartspec.observation.files import observation_path
from smartspec.vllm_plugin.ab.metrics import toggle_metrics_path
from smartspec.vllm_plugin.compatibility import SCHEDULER
from smartspec.vllm_plugin.file_thread import SCRAPE_SECONDS, FileThread
from smartspec.vllm_plugin.handover import newest
from smartspec.vllm_plugin.observed.collector import ObservationCollector
from smartspec.vllm_plugin.settings import OBSERVE, Settings
from smartspec.vllm_plugin.step.metrics import metrics_path

logger = logging.getLogger(__name__)


class MetricsCollector(Collector):
    """The last metrics of the engines, read on every collection by the thread of files, for which
    none waits long. A file that cannot be read is left out, and the log says so once. All other
    metrics, vLLM's own among them, are shown."""

    def __init__(self, paths: list[Path], files: FileThread):
        self._paths, self._files = paths, files
        self._families: dict[str, Metric] = {}
        self._unreadable: set[Path] = set()

    def describe(self) -> list[Metric]:
        """Return nothing: no metric is known before the first step."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return one family of each name, with the samples of all engines."""
        try:
            self._files.call(self._read_all, SCRAPE_SECONDS)
        except TimeoutError as error:
            self._warn(self._paths[0].parent, error)
        yield from self._families.values()

    def _read_all(self) -> None:
        families: dict[str, Metric] = {}
        for path in self._paths:
            for family in self._read(path):
                families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                families[family.name].samples.extend(family.samples)
        self._families = families
        self._unreadable.discard(self._paths[0].parent)

    def _read(self, path: Path) -> list[Metric]:
        """Return all families of a file, or none."""
        try:
            found = newest(path)
            text = "" if found is None else found.read_text(encoding="utf-8")
            families = list(text_string_to_metric_families(text))
        except FileNotFoundError:
            return []
        except Exception as error:
            # the parser has many kinds, and whatever it is must not cost the others
            self._warn(path, error)
            return []
        self._unreadable.discard(path)
        return families

    def _warn(self, path: Path, error: Exception) -> None:
        if path not in self._unreadable:
            self._unreadable.add(path)
            logger.warning(
                "%s is left out of /metrics, or old there (%s); delete it if this does not end",
                path,
                error,
            )


class StatLogger(AggregateStatLoggerBase):
    """The stat logger, one for all engines of a server. vLLM makes one in every server beside which
    SmartSpec is installed, of any version: an addition to this interface ends no server."""

    def __init__(self, vllm_config, engine_indexes: list[int], *_, **__):
        if vllm_config.scheduler_config.scheduler_cls != SCHEDULER:
            return
        settings = Settings.read(vllm_config.additional_config)
        folder = settings.cache
        paths = [
            path(folder, vllm_config.instance_id, index)
            for path in (metrics_path, toggle_metrics_path)
            for index in engine_indexes
        ]
        thread = FileThread()
        thread.wait()  # its thread begins here: at the end of a process, none can
        REGISTRY.register(MetricsCollector(paths, thread))
        if settings.policy == OBSERVE:
            files = [
                observation_path(folder, vllm_config.instance_id, index) for index in engine_indexes
            ]
            REGISTRY.register(ObservationCollector(files, thread))

    def record(self, *_, **__) -> None:
        """Do nothing: the engines count."""

    def log_engine_initialized(self, *_, **__) -> None:
        """Do nothing."""


StatLogger.__abstractmethods__ = frozenset()  # methods that a newer version demands do nothing here
