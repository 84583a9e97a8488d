"""Files that an engine leaves for the process that answers HTTP, and for people. Where the cache
folder cannot be written, they are in the folder for temporary files, which vLLM's sockets need too.
"""

import logging
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from smartspec.observation.files import newest_files

logger = logging.getLogger("vllm.smartspec")

DAY = 24 * 3600.0
# Patterns below the folder `vllm`, with the age from which on files are removed: each start of vLLM
# has a name of its own.
OLD = {
    "*.prom": 7 * DAY,
    "*.onoff": 7 * DAY,
    ".storing-*": DAY,
    "*/.storing-*": DAY,
    "observed/*.json": 30 * DAY,
}


class Handover:
    """One such file. A failed write is one warning, and is tried again. what: the name of what is
    in it."""

    def __init__(self, path: Path, what: str):
        self.path, self._what, self._has_failed = path, what, False

    def write(self, write: Callable[[Path], object]) -> None:
        """Call write with the path, and where that raises OSError, with the other one."""
        try:
            write(self.path)
        except OSError as error:
            if not self._has_failed:
                text = "%s cannot be written to %s (%s): now in %s, until it can"
                logger.warning(text, self._what, self.path, error, elsewhere(self.path))
            self._has_failed = True
            with suppress(OSError):
                write(elsewhere(self.path))
        else:
            if self._has_failed:
                elsewhere(self.path).unlink(missing_ok=True)
            self._has_failed = False


def elsewhere(path: Path) -> Path:
    """The path where the cache folder cannot be written."""
    return Path(tempfile.gettempdir(), f"smartspec-{path.name}")


def newest(path: Path) -> Path | None:
    """The path at which this file was written last, None where there is none. OSError where that
    cannot be seen."""
    times = {each: _time(each) for each in (path, elsewhere(path))}
    found = max(times, key=times.__getitem__)
    return found if times[found] else None


def remove_old(cache: Path) -> None:
    """Remove what servers before have left, and keep the newest observation."""
    temporary, kept = Path(tempfile.gettempdir()), []
    with suppress(OSError):  # another engine may remove files too
        kept = newest_files(cache)
    for pattern, age in OLD.items():
        for path in [*(cache / "vllm").glob(pattern), *temporary.glob(f"smartspec-{pattern}")]:
            with suppress(OSError):  # the same; a folder may be read-only
                if path not in kept and time.time() - path.stat().st_mtime > age:
                    path.unlink()


def _time(path: Path) -> float:
    """The time of the last write, 0 where there is no such file. OSError where that cannot be
    seen."""
    try:
        return path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return 0.0
