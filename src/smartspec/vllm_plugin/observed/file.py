"""The observation of an engine on disk, and the end of its server's log: a short form of it, and a card."""

import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock, Thread

from smartspec.observation.card import Card
from smartspec.observation.files import read_observation, write_json
from smartspec.observation.forecast import Forecasts
from smartspec.observation.records import Arrivals, Observation
from smartspec.observation.report import conclusions, longest_of, summary

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets
NUM_DRAWS = 8  # for intervals at the end of a log: vLLM waits for it


class ObservationFile:
    """The file of an observation. A failed write is one warning, and is tried again."""

    def __init__(self, path: Path):
        self.path, self._is_unwritable = path, False
        self._next: Observation | None = None  # to be written
        self._lock, self._hurry = Lock(), Event()
        self._thread: Thread | None = None  # None where nothing waits

    def write_soon(self, observation: Observation, seconds: float = 0.0) -> None:
        """Write in a thread, after so many seconds. An observation that waits is replaced, and written no later."""
        with self._lock:
            self._next = _copy(observation)
            if not seconds:
                self._hurry.set()
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._write_next, args=(seconds,), daemon=True)
                self._thread.start()

    def _write_next(self, seconds: float) -> None:
        self._hurry.wait(seconds)
        self._hurry.clear()
        while True:
            with self._lock:
                observation, self._next = self._next, None
                if observation is None:
                    self._thread = None
                    return
            self.write(observation)

    def write(self, observation: Observation) -> None:
        """Write it whole or not at all."""
        try:
            write_json(self.path, observation.to_dict())
        except (OSError, ValueError) as error:
            if not self._is_unwritable:
                logger.warning("what is observed cannot be kept in %s (%s): vLLM serves on", self.path, error)
            self._is_unwritable = True
        else:
            self._is_unwritable = False

    def wait(self) -> None:
        """Write an observation that waits without more delay, and wait for that."""
        if (thread := self._thread) is not None:
            self._hurry.set()
            thread.join(timeout=10)


def log_conclusions(paths: list[Path]) -> None:
    """Log a short form of the observations in these files of a server's engines, and write a card beside the first.
    Nothing without an observation, or where that was done already: vLLM kills its engines at the end, unless it has
    time (--shutdown-timeout). Then the process that answers HTTP does it."""
    files = [path for path in paths if path.exists()]
    if not files or _is_newer(card_path(files[0]), files[0]):
        return
    try:
        observation = Observation.merged([read_observation(path) for path in files])
        Card.of(observation).write(card_path(files[0]))
        for line in conclusions(summary(Forecasts(observation, longest_of(observation), num_draws=NUM_DRAWS))):
            logger.info("SmartSpec observed: %s", line)
    except (ValueError, OSError) as error:
        logger.warning("SmartSpec says no more of what was observed: %s", error)


def card_path(path: Path) -> Path:
    """The path of the card that belongs to an observation."""
    return path.parent.with_name("cards") / path.name


def _is_newer(path: Path, other: Path) -> bool:
    return path.exists() and path.stat().st_mtime_ns >= other.stat().st_mtime_ns


def _copy(observation: Observation) -> Observation:
    """Return a copy for a thread: while steps are summed, sums are replaced, and never changed."""
    return replace(
        observation,
        cells=dict(observation.cells),
        outcomes=Counter(observation.outcomes),
        arrivals=Arrivals(**vars(observation.arrivals)),
    )
