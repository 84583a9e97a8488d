"""Numbers that a policy remembers of every request, in columns, so that a step reads and writes all
rows at once."""

import numpy as np

_CAPACITY = 256


class RequestTable:
    """Columns by name: table[name][table.rows(request_ids)] are the values of these requests.

    start: what a new request starts with, by column; an array makes a column of arrays.
    """

    def __init__(self, **start: float | np.ndarray):
        self._start = {name: np.asarray(value) for name, value in start.items()}
        self._columns = {
            name: np.repeat(value[None], _CAPACITY, axis=0) for name, value in self._start.items()
        }
        self._row_of_request: dict[int, int] = {}
        self._free_rows = list(range(_CAPACITY))

    def __len__(self) -> int:
        return len(self._row_of_request)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._columns[name]

    def rows(self, request_ids: np.ndarray) -> np.ndarray:
        """Table rows of these requests, int [R]; unknown ones are made."""
        request_ids = request_ids.tolist()
        try:
            rows = [self._row_of_request[request_id] for request_id in request_ids]
        except KeyError:
            rows = [self._find_or_make(request_id) for request_id in request_ids]
        return np.array(rows, dtype=np.intp)

    def forget(self, request_id: int) -> None:
        """Drop a request; unknown ones are ignored."""
        row = self._row_of_request.pop(request_id, None)
        if row is not None:
            self._free_rows.append(row)

    def _find_or_make(self, request_id: int) -> int:
        row = self._row_of_request.get(request_id)
        if row is None:
            if not self._free_rows:
                self._grow()
            row = self._row_of_request[request_id] = self._free_rows.pop()
            for name, value in self._start.items():
                self._columns[name][row] = value
        return row

    def _grow(self) -> None:
        capacity = len(self._row_of_request)
        self._free_rows = list(range(capacity, 2 * capacity))
        self._columns = {
            name: np.concatenate([column, column]) for name, column in self._columns.items()
        }
