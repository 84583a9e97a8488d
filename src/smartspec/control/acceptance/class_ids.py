"""Workload classes by name, as callers write them, and by number, as estimates are kept."""

from collections import OrderedDict

from smartspec.control.acceptance.effects import NUM_CLASSES


class ClassIds:
    """Small numbers for the names of workload classes: 1 to NUM_CLASSES - 1, in order of first use; 0 stands for no
    class.

    When all are taken, a new name gets the number of the least recently used one. It begins with what is known of that
    class; the estimator observes the change and forgets.
    """

    def __init__(self):
        self._ids: OrderedDict[str, int] = OrderedDict()  # the least recently used first

    def of(self, name: str | None) -> int:
        if name is None:
            return 0
        if name not in self._ids:
            is_full = len(self._ids) == NUM_CLASSES - 1
            self._ids[name] = self._ids.popitem(last=False)[1] if is_full else len(self._ids) + 1
        self._ids.move_to_end(name)
        return self._ids[name]
