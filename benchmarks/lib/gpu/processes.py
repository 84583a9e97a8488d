"""Jobs in processes of their own: imports are paid once, GPU memory is given back, a hang ends one
job alone."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

from lib.gpu.results import Results, say


def run_job(name: str, limit: float, results: Results, work: Callable[[], None]) -> bool:
    """Runs work() in a forked process, and ends it after `limit` seconds. Whether it ended well.
    Nothing may have used the GPU in this process."""
    began = time.perf_counter()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        _work_and_leave(name, results, work)
    os.setpgid(pid, pid)  # here too: the limit may be over before the child has come so far
    status = None
    while status is None:
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            status = os.waitstatus_to_exitcode(code)
        elif time.perf_counter() - began > limit:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            results.add(problem=f"{name} was ended after {limit:.0f} s")
            status = -signal.SIGKILL
        else:
            time.sleep(0.05)
    say(f"== {name}: status {status}, {time.perf_counter() - began:.1f} s")
    return status == 0


def _work_and_leave(name: str, results: Results, work: Callable[[], None]) -> None:
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        results.add(problem=name, error=traceback.format_exc()[-4000:])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
