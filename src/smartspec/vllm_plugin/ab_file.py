"""Results of `--act` on disk, so that they survive a restart: a file for each server of a set-up at a time.

Servers of one set-up that share a cache folder, and replicas, have files of their own. A lock says which are in use: it
ends with the process, however that ends.
"""

import fcntl
import hashlib
import json
import logging
import os
from pathlib import Path

from smartspec.observation.files import write_json
from smartspec.vllm_plugin.ab_results import Results

logger = logging.getLogger("vllm.smartspec")

MOST_FILES = 64  # of one set-up in a folder


class AbFile:
    """The first file of this set-up that no other server has. Where there is none, or none can be made, nothing is
    kept, and the log says why. key: what results depend on, JSON-able."""

    def __init__(self, cache: Path, key: dict):
        self.key, self.path = key, None
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
        try:
            (cache / "vllm").mkdir(parents=True, exist_ok=True)
            self._lock, self.path = _first_free(cache / "vllm", digest)
        except OSError as error:
            logger.warning("results of --act are not kept for the next start (%s)", error)
        self._is_unwritable = False

    def close(self) -> None:
        """Leave the file to the next server."""
        if self.path is not None:
            os.close(self._lock)
            self.path = None

    def load(self) -> Results:
        """What earlier servers found. An unusable file is put aside, after a line in the log."""
        if self.path is None:
            return Results()
        try:
            data = json.loads(self.path.read_text("utf-8"))
            if not isinstance(data, dict) or data.get("key") != self.key:
                raise ValueError("it is of another set-up")
            return Results.from_dict(data.get("results"))
        except FileNotFoundError:
            return Results()
        except (OSError, ValueError) as error:
            aside = self.path.with_suffix(".unusable")
            logger.warning("results of --act in %s are unusable (%s): they begin anew", self.path, error)
            try:
                self.path.replace(aside)
                logger.warning("that file is now %s", aside)
            except OSError:
                self.path = None  # it is not overwritten
            return Results()

    def store(self, results: Results) -> None:
        """Write it whole or not at all. Where that is not possible, the log says so once, and it is tried again with
        the next results, which have all."""
        if self.path is None:
            return
        try:
            write_json(self.path, {"key": self.key, "results": results.to_dict()})
        except OSError as error:
            if not self._is_unwritable:
                text = "results of --act cannot be written to %s (%s): they are kept in memory until they can"
                logger.warning(text, self.path, error)
            self._is_unwritable = True
        else:
            self._is_unwritable = False


def _first_free(folder: Path, digest: str) -> tuple[int, Path]:
    for number in range(MOST_FILES):
        path = folder / f"ab-{digest}-{number}.json"
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        if number:
            logger.info("another server of this set-up has this cache folder: results of --act are kept in %s", path)
        return lock, path
    raise OSError(f"{MOST_FILES} servers of this set-up use {folder}: give this one a cache folder of its own")
