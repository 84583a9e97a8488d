"""The format of a server's log lines."""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogFormat(StrEnum):
    """The form of the log, for people or for programs."""

    TEXT = "text"
    JSON = "json"


def configure_logs(log_format: LogFormat) -> None:
    """Lines of at least INFO to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format is LogFormat.JSON else logging.Formatter(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class JsonLines(logging.Formatter):
    """A JSON object a line: time (ISO 8601, UTC), level, logger, message, the record's `fields`, and an exception's
    traceback."""

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
