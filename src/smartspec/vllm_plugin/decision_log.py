"""Decision records on disk, for `smartspec log replay`: a header, then one line of JSON for every step."""

import logging
from collections.abc import Callable
from pathlib import Path

from smartspec.control import DecisionRecord, LogHeader

logger = logging.getLogger("vllm.smartspec")


class DecisionLog:
    """A new log file. Added records are on disk even if vLLM is killed. ValueError if the file exists or cannot be
    made. A failed write later ends the log with a warning; serving goes on."""

    def __init__(self, path: Path):
        try:
            self._file = path.open("x", buffering=1)
        except OSError as error:
            raise ValueError(f"decision log {path} cannot be made ({error.strerror}): choose another file") from error

    def begin(self, header: LogHeader) -> None:
        """Write the first line."""
        self._write(header.to_json)

    def add(self, record: DecisionRecord) -> None:
        """Write a record."""
        self._write(record.to_json)

    def _write(self, to_json: Callable[[], str]) -> None:
        if self._file.closed:
            return
        try:
            self._file.write(to_json() + "\n")
        except (OSError, ValueError) as error:
            logger.warning("the decision log %s ends here: %s", self._file.name, error)
            self._file.close()
