"""Decision records on disk, for `smartspec replay`: a header, then one line of JSON for every step."""

import logging
from collections.abc import Callable
from pathlib import Path

from smartspec.control import DecisionRecord, LogHeader

logger = logging.getLogger("vllm.smartspec")


class DecisionLog:
    """A new log file, of which all that was added is on disk whenever vLLM is killed. ValueError if there is such a
    file or none can be made; what cannot be written later ends the log, with a warning, and not the serving."""

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
