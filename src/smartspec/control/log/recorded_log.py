"""Reading a decision log: a header, then one record a line."""

from collections.abc import Iterator
from pathlib import Path

from smartspec.control.log.decision import DecisionRecord, LogHeader

MAX_LINE_BYTES = 2**26


class RecordedLog:
    """A log file, read line by line as often as needed; what is appended after opening is left out.

    notice: set when the last line breaks off, as a server that was killed leaves it; that line is
    skipped. ValueError on anything else that is wrong, with the line; OSError if the file cannot be
    read.
    """

    def __init__(self, path: Path):
        self.path = path
        self.notice: str | None = None
        self._size = path.stat().st_size
        with path.open("rb") as file:
            first = file.readline(MAX_LINE_BYTES)
        if not first.strip():
            raise ValueError(f"{path} is empty: a decision log begins with a header")
        self.header = LogHeader.from_json(_text(first, 1))

    def __iter__(self) -> Iterator[DecisionRecord]:
        position = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(
                iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1
            ):
                position += len(line)
                is_whole = line.endswith(b"\n") and position <= self._size
                if number > 1:
                    try:
                        yield self._record(_text(line, number), number)
                    except ValueError as error:
                        if is_whole:
                            raise
                        self.notice = f"the last line breaks off and is left out ({error})"
                if position >= self._size:
                    return

    def _record(self, text: str, number: int) -> DecisionRecord:
        record = DecisionRecord.from_json(text, number)
        longest = max(
            int(record.lengths.max(initial=0)), int(record.outcome.drafted.max(initial=0))
        )
        if longest > self.header.max_draft_tokens:
            raise ValueError(
                f"decision log, line {number}: a draft of {longest} tokens, the header allows "
                f"{self.header.max_draft_tokens}"
            )
        return record


def _text(line: bytes, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"decision log, line {number}: not UTF-8 ({error.reason})") from error
