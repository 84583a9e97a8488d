"""The observation of an engine on disk, and the end of its server's log: a short form of it, and a
card."""

import logging
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

from smartspec.observation.card import Card
from smartspec.observation.files import read_observation, write_json
from smartspec.observation.forecast import Forecasts
from smartspec.observation.records import Arrivals, Observation
from smartspec.observation.report import conclusions, longest_of, summary
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.handover import Handover, newest

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets
NUM_DRAWS = 8  # for intervals at the end of a log: vLLM waits for it


class ObservationFile:
    """The file of an observation, written by the thread of files."""

    def __init__(self, path: Path, files: FileThread):
        self.path, self._files = path, files
        self._file = Handover(path, "what is observed")

    def write_soon(self, observation: Observation, seconds: float = 0.0) -> None:
        """Write it after so many seconds. An observation that waits is replaced, and written no
        later."""
        self._files.post(self, partial(self.write, _copy(observation)), seconds)

    def write(self, observation: Observation) -> None:
        """Write it whole or not at all."""
        self._file.write(lambda path: write_json(path, observation.to_dict()))


def log_conclusions(paths: list[Path]) -> None:
    """Log a short form of the observations in these files of a server's engines, and write a card
    beside the first. Nothing without an observation, or where that was done already: vLLM kills its
    engines at the end, unless it has time (--shutdown-timeout). Then the process that answers HTTP
    does it."""
    try:
        files = [found for path in paths if (found := newest(path))]
        if not files or _is_newer(newest(card_path(paths[0])), files[0]):
            return
        observation = Observation.merged([read_observation(path) for path in files])
        Handover(card_path(paths[0]), "the card").write(Card.of(observation).write)
        for line in conclusions(
            summary(Forecasts(observation, longest_of(observation), num_draws=NUM_DRAWS))
        ):
            logger.info("SmartSpec observed: %s", line)
    except (ValueError, OSError) as error:
        logger.warning("SmartSpec says no more of what was observed: %s", error)


def card_path(path: Path) -> Path:
    """The path of the card that belongs to an observation."""
    return path.parent.with_name("cards") / path.name


def _is_newer(path: Path | None, other: Path) -> bool:
    return path is not None and path.stat().st_mtime_ns >= other.stat().st_mtime_ns


def _copy(observation: Observation) -> Observation:
    """Return a copy for a thread: while steps are summed, sums are replaced, and never changed."""
    return replace(
        observation,
        cells=dict(observation.cells),
        outcomes=Counter(observation.outcomes),
        arrivals=Arrivals(**vars(observation.arrivals)),
    )
