"""Counts what bodies have that this server does not know, by name."""

from collections import Counter
from collections.abc import Collection

import prometheus_client

MAX_NAMES = 1024
MAX_NAMES_OF_CLIENT = 64  # that it was the first to send: no client takes the room of others
MAX_CHARACTERS = 64  # of a name
OTHER = "other"


class IgnoredFields:
    """counter: with the label field. Names are clients' own, so they are bounded: the rest counts
    as OTHER."""

    def __init__(self, counter: prometheus_client.Counter):
        self._counter = counter
        self._names: set[str] = set()
        self._num_first: Counter[str] = Counter()  # names by the client that sent them first

    def count(self, names: Collection[str], client: str) -> None:
        """Count the names of one body. Call it in any thread."""
        for name in names:
            self._counter.labels(self._label(name[:MAX_CHARACTERS], client)).inc()

    def _label(self, name: str, client: str) -> str:
        if name in self._names:
            return name
        if len(self._names) >= MAX_NAMES or self._num_first[client] >= MAX_NAMES_OF_CLIENT:
            return OTHER
        self._names.add(name)
        self._num_first[client] += 1
        return name
