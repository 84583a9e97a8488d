"""Effects of workload classes, relative to the pool, and of requests, relative to their class: the
fast part of the estimate.

Effects are shifts of the log-odds, one by drafter (of which there are D). Those of the requests of
a class scatter around the class effect with variance 1 / strength, class effects around 0 with the
same. Let W be the information that a request has collected, and s its score (see table). The
posterior of such a random-effects model then has a closed form:

    share of a request in its class   a = W * strength / (W + strength), at most strength, however
                                      large W
    class effect                      sum of a * (s / W) / (sum of a + strength)
    request effect                    (s + strength * class effect) / (W + strength)

The knowledge of a request fades, because its text changes. Its contribution to its class stays
there, and fades more slowly.
"""

from math import exp

import numpy as np

from smartspec.control.acceptance.settings import REQUEST_MEMORY, REQUEST_STRENGTH, WORKLOAD_MEMORY

MAX_TRACKED_REQUESTS = 4096  # a power of two
NUM_CLASSES = 64  # with 0, of requests that name none; a power of two: class ids beyond share
_NO_REQUEST = np.iinfo(np.int64).min


class AcceptanceEffects:
    """Effects of classes and requests on the log-odds.

    A request lives in the table row id modulo MAX_TRACKED_REQUESTS, found without a search. Where
    two claim one row, the newer gets it: ids are counted up, so the older has long ended. The last
    row stays zero, for requests of which nothing is known.
    """

    def __init__(self, num_drafters: int):
        self._ids = np.full(MAX_TRACKED_REQUESTS + 1, _NO_REQUEST)
        self._classes = np.zeros(MAX_TRACKED_REQUESTS + 1, dtype=np.int64)
        self._state = np.zeros((2, num_drafters, MAX_TRACKED_REQUESTS + 1))  # information and score
        self._shares = np.zeros((2, num_drafters, NUM_CLASSES))  # sums of a, and of a * (s / W)
        self._columns = np.eye(NUM_CLASSES)

    @property
    def num_tracked_requests(self) -> int:
        return int(np.count_nonzero(self._ids != _NO_REQUEST))

    def rows(self, request_ids: np.ndarray) -> np.ndarray:
        """Return the table row of each request: int [R]."""
        rows = request_ids & (MAX_TRACKED_REQUESTS - 1)
        return np.where(self._ids.take(rows) == request_ids, rows, MAX_TRACKED_REQUESTS)

    def rows_to_learn(
        self, request_ids: np.ndarray, class_ids: np.ndarray, has_tests: np.ndarray
    ) -> np.ndarray:
        """Return the same as rows(), with a new row for every request that was tested (bool [R])
        for the first time."""
        rows = self.rows(request_ids)
        is_new = has_tests & (rows == MAX_TRACKED_REQUESTS)
        if any(is_new.tolist()):
            claimed = request_ids[is_new] & (MAX_TRACKED_REQUESTS - 1)
            self._state[:, :, claimed] = 0.0
            self._ids[claimed] = request_ids[is_new]
            self._classes[claimed] = class_ids[is_new] & (NUM_CLASSES - 1)
            rows = self.rows(request_ids)
        return rows

    def of(self, rows: np.ndarray, class_ids: np.ndarray) -> np.ndarray:
        """Return class and request effect together, on the log-odds: float [D, R]."""
        shares, estimates = self._shares.take(class_ids & (NUM_CLASSES - 1), axis=2)
        class_effects = estimates / (shares + REQUEST_STRENGTH)
        information, score = self._state.take(rows, axis=2)
        return (score + REQUEST_STRENGTH * class_effects) / (information + REQUEST_STRENGTH)

    def learn(
        self,
        rows: np.ndarray,
        effects: np.ndarray,
        information: np.ndarray,
        residual: np.ndarray,
        num_steps: int = 1,
    ) -> None:
        """Learn from the observations of num_steps steps. rows: int [R], table rows, each once for
        every step it was in. effects: those that the observations were predicted with. All others
        float [D, R]; 0 where none."""
        is_tracked = (
            rows < MAX_TRACKED_REQUESTS
        )  # of two requests that claim one row, the loser is not
        added = np.array([information, residual + information * effects]) * is_tracked
        order = rows.argsort(kind="stable")
        rows = rows[order]
        firsts = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
        rows, added = rows[firsts], np.add.reduceat(added.take(order, axis=2), firsts, axis=2)
        known = self._state.take(rows, axis=2) * exp(-num_steps / REQUEST_MEMORY)
        now = known + added
        self._state[:, :, rows] = now
        moved = self._share_of(now) - self._share_of(known)
        self._shares *= exp(-num_steps / WORKLOAD_MEMORY)
        self._shares += moved.dot(self._columns.take(self._classes.take(rows), axis=0))

    def forget(self, request_id: int) -> None:
        """Drop a request. Its contribution to its class stays. Unknown ones are ignored."""
        row = request_id & (MAX_TRACKED_REQUESTS - 1)
        if self._ids[row] == request_id and request_id != _NO_REQUEST:
            self._state[:, :, row] = 0.0
            self._ids[row] = _NO_REQUEST

    def _share_of(self, state: np.ndarray) -> np.ndarray:
        """Return a and a * (s / W), of information W and score s: float [2, D, R] both."""
        return state * (REQUEST_STRENGTH / (state[0] + REQUEST_STRENGTH))
