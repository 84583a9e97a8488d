"""Builds what observes a scheduler: what its observation is of, where it goes, what the log says at the end."""

import logging
from collections.abc import Callable

from smartspec.observation.files import observation_path
from smartspec.observation.records import Observation
from smartspec.vllm_plugin.compatibility import is_adaptive
from smartspec.vllm_plugin.metrics import Metrics, metrics_path
from smartspec.vllm_plugin.observed import tell
from smartspec.vllm_plugin.observing import ObservationFile, Observer
from smartspec.vllm_plugin.settings import Settings
from smartspec.vllm_plugin.setup import setup_of

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets


def make_observer(scheduler, settings: Settings) -> Observer:
    """Everything around one scheduler."""
    config = scheduler.vllm_config
    engine_index = config.parallel_config.data_parallel_index
    setup = setup_of(scheduler)
    file = ObservationFile(observation_path(settings.cache, config.instance_id, engine_index))
    logger.info("SmartSpec observes: vLLM's own draft lengths are used. See `smartspec vllm observed`, %s", file.path)
    observer = Observer(
        scheduler,
        Observation(setup),
        file,
        has_passes=setup["has_passes"],
        is_adaptive=is_adaptive(config),
        on_steps=Metrics(
            metrics_path(settings.cache, config.instance_id, engine_index), engine_index, settings.metrics_seconds
        ).observe,
        on_end=lambda observation: tell([file.path]),
    )
    scheduler.shutdown = _finishing(observer, scheduler.shutdown)
    return observer


def _finishing(observer: Observer, shutdown: Callable[[], None]) -> Callable[[], None]:
    """vLLM's shutdown of the scheduler, after the end of observing."""

    def finish_and_shut_down() -> None:
        try:
            observer.finish()
        except Exception:
            logger.exception("what was observed last is lost")
        shutdown()

    return finish_and_shut_down
