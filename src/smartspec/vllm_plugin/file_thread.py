"""One thread for all files of a process. A folder that hangs, as of a file server that is gone,
makes this thread wait, and no other: not vLLM's scheduler, and not the process that answers HTTP.
"""

import logging
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import TIMEOUT_MAX, Condition, Thread
from typing import TypeVar

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets

Result = TypeVar("Result")
PATIENCE_SECONDS = 5.0  # with a folder, of a server that starts or ends
SCRAPE_SECONDS = 0.5  # of the process that answers HTTP, once: then the last metrics are shown


class FileThread:
    """The thread. Each job is a function of no arguments. One that fails costs a line in the
    log."""

    def __init__(self):
        self._changed = Condition()
        # with the time it is due
        self._jobs: dict[Hashable, tuple[float, Callable[[], object]]] = {}
        self._job_start = float("inf")  # while no job is under way
        self._thread: Thread | None = None

    def post(self, key: Hashable, job: Callable[[], object], seconds: float = 0.0) -> None:
        """Do a job, after so many seconds. One of the same key that waits is replaced, and done no
        later: of each file at most one state waits."""
        with self._changed:
            was_due, _ = self._jobs.get(key, (float("inf"), None))
            due = time.monotonic() + seconds
            self._jobs[key] = min(was_due, due), job
            if self._thread is None:
                self._thread = Thread(target=self._run, name="smartspec-files", daemon=True)
                self._thread.start()
            if due < was_due:
                self._changed.notify()

    def call(self, job: Callable[[], Result], seconds: float = PATIENCE_SECONDS) -> Result:
        """Return what a job returns, or raise its error. TimeoutError, which is an OSError, where
        that takes so many seconds, or an earlier job has taken them already."""
        answer: Future[Result] = Future()

        def answer_it() -> None:
            try:
                answer.set_result(job())
            except BaseException as error:
                answer.set_exception(error)

        self.post(answer_it, answer_it)
        try:
            seconds_of_job = max(time.monotonic() - self._job_start, 0.0)
            return answer.result(max(seconds - seconds_of_job, 0.0))
        except TimeoutError:
            if answer.done():  # the job's own
                raise
            with self._changed:
                self._jobs.pop(answer_it, None)
            raise TimeoutError(f"no answer of its disk in {seconds:g} s") from None

    def wait(self, seconds: float = PATIENCE_SECONDS) -> bool:
        """Do all jobs that wait now, and what they post at once. False where that takes so many
        seconds."""
        with self._changed:
            self._jobs = {key: (0.0, job) for key, (_, job) in self._jobs.items()}
        try:
            for _ in range(2):
                self.call(lambda: None, seconds)
        except TimeoutError:
            return False
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                while (rest := self._seconds_to_next()) > 0:
                    self._changed.wait(min(rest, TIMEOUT_MAX))
                key = min(self._jobs, key=lambda key: self._jobs[key][0])
                _, job = self._jobs.pop(key)
                self._job_start = time.monotonic()
            try:
                job()
            except Exception:
                logger.exception("SmartSpec failed with a file: vLLM serves on")
            self._job_start = float("inf")

    def _seconds_to_next(self) -> float:
        """The seconds until a job is due, inf without one."""
        next_due = min((due for due, _ in self._jobs.values()), default=float("inf"))
        return next_due - time.monotonic()
