"""Workload classes by name, as callers write them, and by number, as estimates are kept."""

from collections import Counter, OrderedDict

from smartspec.control.acceptance.effects import NUM_CLASSES


class ClassIds:
    """Small numbers for the names of workload classes: 1 to NUM_CLASSES - 1, in order of first use;
    0 stands for no class.

    When all are taken, the client with the most names loses its least recently used one, and the
    new name gets that number. So a client that uses many names takes its own. The new name begins
    with the estimates of that class; the estimator observes the change and forgets.
    """

    def __init__(self):
        self._ids: OrderedDict[str, int] = OrderedDict()  # the least recently used first
        self._client_of: dict[str, str] = {}  # the client that named it first

    def of(self, name: str | None, client: str = "") -> int:
        """Return the number of a class name, which is given one if it has none. client: the client
        that names it."""
        if name is None:
            return 0
        if name not in self._ids:
            self._ids[name] = (
                self._take_back() if len(self._ids) == NUM_CLASSES - 1 else len(self._ids) + 1
            )
            self._client_of[name] = client
        self._ids.move_to_end(name)
        return self._ids[name]

    def _take_back(self) -> int:
        """Take a number from the name that loses it, and return it."""
        ((client, _),) = Counter(self._client_of[name] for name in self._ids).most_common(1)
        name = next(name for name in self._ids if self._client_of[name] == client)
        del self._client_of[name]
        return self._ids.pop(name)
