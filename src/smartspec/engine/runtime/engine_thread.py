"""The one thread in which everything that computes must run, from loading to the last step.

OpenMP keeps a pool of workers per calling thread. Two threads that compute, even one after the
other, have more workers than there are cores, and libgomp then stops spinning at every barrier:
steps take 20 % longer (measured at one token).
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future


class EngineThread(threading.Thread):
    """A daemon thread that runs what is submitted, in order; it ends with the process."""

    def __init__(self):
        super().__init__(name="smartspec-engine", daemon=True)
        self._jobs: queue.SimpleQueue[tuple[Callable[[], object], Future]] = queue.SimpleQueue()
        self.start()

    def submit(self, function: Callable[[], object]) -> Future:
        """Run function after everything submitted before; the future holds its result or
        exception."""
        future: Future = Future()
        self._jobs.put((function, future))
        return future

    def run(self) -> None:
        while True:
            function, future = self._jobs.get()
            try:
                future.set_result(function())
            except BaseException as error:  # the waiter of the future gets it, whatever it is
                future.set_exception(error)
