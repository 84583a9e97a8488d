"""Decision records on disk: a header, then one line of JSON each, written in batches.

What goes wrong with the file at start is an error; later it is a warning and a count of what is
missing, because serving matters more than its log.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path

from smartspec.control import DecisionRecord, LogHeader

logger = logging.getLogger(__name__)

FLUSH_RECORDS = 64  # about 200 kB at 32 requests
MOST_WAITING = 64 * FLUSH_RECORDS


class DecisionLog:
    """An open log file. One thread adds; close it when that has ended.

    defer: has a function called that writes, in another thread if need be. None: it is called here,
    once there are FLUSH_RECORDS. num_lost: records that could not be written. Raises ValueError,
    with the remedy, when path is a log already or cannot be written.
    """

    def __init__(self, path: Path, defer: Callable[[Callable[[], None]], None] | None = None):
        self.path = path
        self.num_lost = 0
        self._defer = defer
        self._lines: deque[str] = deque()
        if path.is_file() and path.stat().st_size:
            raise ValueError(
                f"decision log {path} exists already: move it away or choose another file"
            )
        try:
            self._file = FileIO(path, "w")
        except OSError as error:
            raise self._unwritable(error) from error

    def begin(self, header: LogHeader) -> None:
        """Write the first line. Raises ValueError when that is not possible here and now."""
        if self._defer is not None:
            self._add(header.to_json)
            return
        try:
            self._write(f"{header.to_json()}\n".encode())
        except OSError as error:
            raise self._unwritable(error) from error

    def add(self, record: DecisionRecord) -> None:
        """Write a record, soon."""
        self._add(record.to_json)

    def flush(self) -> None:
        """Hand what was added to the operating system; what it does not take is lost, and
        counted."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if not lines:
            return
        try:
            self._write("".join(f"{line}\n" for line in lines).encode())
        except (OSError, ValueError) as error:  # ValueError: the file is closed
            self._lose(len(lines), error)

    def _add(self, to_json: Callable[[], str]) -> None:
        try:
            if len(self._lines) >= MOST_WAITING:
                raise OSError(f"{MOST_WAITING} records wait for its disk")
            self._lines.append(to_json())
        except (OSError, ValueError) as error:  # ValueError: not finite
            self._lose(1, error)
        if self._defer is not None:
            self._defer(self.flush)
        elif len(self._lines) >= FLUSH_RECORDS:
            self.flush()

    def close(self) -> None:
        """Flush and close; says how many records are missing, if any. Idempotent."""
        self.flush()
        if not self._file.closed:
            self._file.close()
            if self.num_lost:
                logger.warning("decision log %s lacks %d records", self.path, self.num_lost)

    def _lose(self, num_records: int, error: Exception) -> None:
        if not self.num_lost:
            logger.warning("decision log %s: %s; records will be missing from it", self.path, error)
        self.num_lost += num_records

    def _write(self, data: bytes) -> None:
        """All of data, or none of it: a torn line would make what follows unreadable."""
        num_written = 0
        try:
            while num_written < len(data):
                num_written += self._file.write(data[num_written:])
        except OSError:
            with suppress(OSError):  # not a regular file
                end = self._file.tell() - num_written
                self._file.truncate(end)
                self._file.seek(end)
            raise

    def _unwritable(self, error: OSError) -> ValueError:
        return ValueError(
            f"cannot write decision log {self.path} ({error.strerror}): choose another file"
        )
