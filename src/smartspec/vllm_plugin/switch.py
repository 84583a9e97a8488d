"""`smartspec vllm off` and `on`: speculation off in running servers, without a restart or a port.

The switch is a file in the cache folder. It is for all servers that have this cache folder, those
that start later too. While it is there, vLLM serves without drafts. A thread looks for it twice a
second, by one os.stat, also while no request comes; the scheduler reads what it saw.
"""

import argparse
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.settings import Settings

logger = logging.getLogger("vllm.smartspec")

SWITCH = "switch"  # the reason where an operator switches speculation off
LOOK_SECONDS = 0.5


def switch_path(cache: Path) -> Path:
    """The file that switches all servers of this cache folder off."""
    return cache / "vllm" / "off"


class Switch:
    """The state of the switch, looked at by the thread of files. Where the file cannot be seen, the
    last state stays, and the log says so once. on_change: called in that thread with each new
    state. log: of the server."""

    def __init__(
        self,
        path: Path,
        files: FileThread,
        on_change: Callable[[bool], None] = lambda is_off: None,
        log: logging.Logger = logger,
    ):
        self.path, self.is_off = path, False
        self._files, self._on_change, self._log, self._has_failed = files, on_change, log, False
        try:
            files.call(self._look)
        except TimeoutError as error:
            files.post(self, self._look)
            self._warn(error)

    def _look(self) -> None:
        self._files.post(self, self._look, LOOK_SECONDS)
        was_off = self.is_off
        try:
            os.stat(self.path)
            self.is_off = True
        except (FileNotFoundError, NotADirectoryError):
            self.is_off = False
        except OSError as error:
            self._warn(error)
            return
        self._has_failed = False
        if self.is_off != was_off:
            said = (
                "off: an operator said so, by the file %s."
                if self.is_off
                else "on again: %s is gone."
            )
            self._log.warning(f"Speculation is {said}", self.path)
            self._on_change(self.is_off)

    def _warn(self, error: OSError) -> None:
        if not self._has_failed:
            text = "%s cannot be seen (%s): speculation stays %s, as it was."
            self._log.warning(text, self.path, error, "off" if self.is_off else "on")
        self._has_failed = True


def main(arguments: list[str]) -> int:
    """Make or remove the file. arguments: `off` or `on`, and options. Exit status: 0, 2 where that
    is not possible."""
    parser = argparse.ArgumentParser(
        prog="smartspec vllm",
        description="Switches speculation in all servers of a cache folder off, or on again.",
    )
    parser.add_argument("state", choices=["off", "on"])
    parser.add_argument(
        "--cache",
        type=Path,
        help="the servers' setting `cache` (default: $SMARTSPEC_CACHE, else ours)",
    )
    options = parser.parse_args(arguments)
    try:
        cache = options.cache or Settings.read({}).cache
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    path = switch_path(cache)
    try:
        if options.state == "off":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        print(f"error: {path}: {error.strerror}; servers stay as they are", file=sys.stderr)
        return 2
    servers = f"all servers with the cache folder {cache}, running now or started later"
    if options.state == "off":
        again = "smartspec vllm on" + f" --cache {options.cache}" * bool(options.cache)
        print(f"off, within a second: {servers}. They serve without drafts until: {again}")
    else:
        print(f"on, within a second: {servers}")
    if not any(path.parent.glob("*.onoff")):
        print(f"No server has left metrics in {path.parent} yet: is it the cache folder of yours?")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
