"""Server-sent events as they come: the data of each, from parts of a body that are cut anywhere.

Source: the event stream format of the HTML standard. Differences: an event ends as soon as its data
is a whole JSON value, as some servers leave out the empty line after it; and a body that is one
JSON object is one event, as some servers do not stream.
"""

import json
import re

LINE_END = re.compile(rb"\r\n|\n|\r")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DONE = b"[DONE]"
HEAD_BYTES = 80


class EventReader:
    """Reads one body. head: its first bytes. num_events: that were read."""

    def __init__(self):
        self.head = b""
        self.num_events = 0
        self._rest = b""
        self._data: list[bytes] = []  # of the event that has begun, by line

    @property
    def is_stream(self) -> bool:
        """True if it is anything but one JSON object."""
        return not self.head.startswith(b"{")

    def feed(self, part: bytes) -> list[bytes]:
        """The data of the events that end in the next part."""
        if len(self.head) < HEAD_BYTES:
            self.head = (self.head + part).removeprefix(BYTE_ORDER_MARK).lstrip()[:HEAD_BYTES]
        self._rest += part
        if not self.is_stream:
            return []
        # A carriage return at the end may be half of a line's end.
        whole, held = (self._rest[:-1], b"\r") if self._rest.endswith(b"\r") else (self._rest, b"")
        *lines, rest = LINE_END.split(whole)
        self._rest = rest + held
        return self._events(lines)

    def end(self) -> list[bytes]:
        """The data of what is left when the body has ended."""
        if not self.is_stream:
            self.num_events += 1
            return [self._rest.strip().removeprefix(BYTE_ORDER_MARK)]
        return self._events([self._rest.rstrip(b"\r"), b""])

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events = []
        for line, following in zip(lines, [*lines[1:], None], strict=False):
            line = line.removeprefix(BYTE_ORDER_MARK)
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip())
            if self._data and (
                not line or (following != b"" and _is_whole(b"\n".join(self._data)))
            ):
                events.append(b"\n".join(self._data))
                self._data = []
        self.num_events += len(events)
        return events


def _is_whole(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return data == DONE
    return True
