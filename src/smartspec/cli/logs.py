"""The format of a server's log lines."""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum

MAX_TRACEBACKS = 10
TRACEBACKS_SECONDS = 60.0
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogFormat(StrEnum):
    """The form of the log, for people or for programs."""

    TEXT = "text"
    JSON = "json"


def configure_logs(log_format: LogFormat) -> None:
    """Lines of at least INFO to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(FewTracebacks())
    handler.setFormatter(JsonLines() if log_format is LogFormat.JSON else logging.Formatter(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class FewTracebacks(logging.Filter):
    """At most MAX_TRACEBACKS in TRACEBACKS_SECONDS: who finds what fails can send it again and
    again."""

    def __init__(self):
        super().__init__()
        self._num, self._began = 0, 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.exc_info:
            return True
        if not 0 <= record.created - self._began < TRACEBACKS_SECONDS:
            self._num, self._began = 0, record.created
        self._num += 1
        if self._num == MAX_TRACEBACKS:
            text = (
                f"{record.getMessage().strip()} (the next tracebacks of this minute are left out)"
            )
            record.msg, record.args = text, ()
        return self._num <= MAX_TRACEBACKS


class JsonLines(logging.Formatter):
    """A JSON object a line: time (ISO 8601, UTC), level, logger, message, the record's `fields`,
    and an exception's traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
