"""The queue of waiting requests: the client that was served least comes first.

Source: start-time fair queueing (Goyal, Vin, Cheng, 1996), as the virtual token counter (Sheng et
al., 2024, arXiv 2401.00588) uses it for tokens: each client has a counter of the tokens it was
served over its share. A client that comes back starts where the others are now: it gets no credit
for the time it was away.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, count

from smartspec.core.origin import Origin
from smartspec.core.request import Request

MAX_IDLE_CLIENTS = 4096

Entry = tuple[int, int, Request]  # priority, number of its arrival
PUT_BACK = -1  # the number of one that was put back


class FairQueue:
    """A queue in this order: requests that were put back; then the next of the client that was
    served least. Requests of one client come by priority, then by arrival."""

    def __init__(self):
        self._put_back: deque[Request] = deque()
        self._passed_over: list[Entry] = []
        # a heap for each client that has any
        self._waiting: dict[str, list[Entry]] = {}
        self._served: dict[str, float] = {}  # tokens over share
        self._now = 0.0  # what the client chosen last had been served
        self._arrivals = count()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Request]:
        yield from self._put_back
        for _, _, request in sorted(chain.from_iterable(self._waiting.values())):
            yield request

    def add(self, request: Request) -> None:
        """A new request."""
        client = request.origin.client
        if client not in self._waiting:
            self._served[client] = max(self._served.get(client, 0.0), self._now)
        heap = self._waiting.setdefault(client, [])
        heappush(heap, (request.origin.priority, next(self._arrivals), request))
        self._length += 1

    def put_back(self, request: Request) -> None:
        """A request that is to be the next one."""
        self._put_back.appendleft(request)
        self._length += 1

    def peek(self) -> Request | None:
        """The next request, None if there is none that was not passed over."""
        if self._put_back:
            return self._put_back[0]
        return self._waiting[self._next_client()][0][2] if self._waiting else None

    def pop(self) -> Request:
        """Take out the next request. There must be one."""
        self._length -= 1
        if self._put_back:
            return self._put_back.popleft()
        client = self._next_client()
        self._now = max(self._now, self._served[client])
        return self._pop_of(client)[2]

    def pass_over(self) -> None:
        """The next request is not looked at until look_again, and keeps its place."""
        self._passed_over.append(
            (0, PUT_BACK, self._put_back.popleft())
            if self._put_back
            else self._pop_of(self._next_client())
        )

    def look_again(self) -> None:
        """At the requests that were passed over. Until then none may be added or removed."""
        for entry in reversed(self._passed_over):
            if entry[1] == PUT_BACK:
                self._put_back.appendleft(entry[2])
            else:
                heappush(self._waiting.setdefault(entry[2].origin.client, []), entry)
        self._passed_over.clear()

    def remove(self, request_id: int) -> Request | None:
        """Take out a request wherever it is; None if it is not here."""
        for request in self:
            if request.request_id == request_id:
                break
        else:
            return None
        self._length -= 1
        if request in self._put_back:
            self._put_back.remove(request)
            return request
        client = request.origin.client
        self._waiting[client] = [
            entry for entry in self._waiting[client] if entry[2] is not request
        ]
        heapify(self._waiting[client])
        self._drop_if_empty(client)
        return request

    def charge(self, origin: Origin, num_tokens: int) -> None:
        """Charge a client with so many tokens that were computed for it."""
        served = self._served.get(origin.client, self._now)
        self._served[origin.client] = served + num_tokens / origin.share
        if len(self._served) > MAX_IDLE_CLIENTS + len(self._waiting):
            self._served = {client: self._served[client] for client in self._waiting}

    def _next_client(self) -> str:
        return min(
            self._waiting, key=lambda client: (self._served[client], self._waiting[client][0][1])
        )

    def _pop_of(self, client: str) -> Entry:
        entry = heappop(self._waiting[client])
        self._drop_if_empty(client)
        return entry

    def _drop_if_empty(self, client: str) -> None:
        if not self._waiting[client]:
            del self._waiting[client]
