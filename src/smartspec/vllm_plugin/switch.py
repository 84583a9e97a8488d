"""`smartspec vllm off` and `on`: speculation off in running servers, without a restart or a port.

The switch is a file in the cache folder. It is for all servers that have this cache folder, those that start later
too. While it is there, vLLM serves without drafts. A scheduler looks for it once a second, by one os.stat.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from smartspec.vllm_plugin.settings import Settings

logger = logging.getLogger("vllm.smartspec")

SWITCH = "switch"  # the reason where an operator switches speculation off
LOOK_SECONDS = 1.0


def switch_path(cache: Path) -> Path:
    """The file that switches all servers of this cache folder off."""
    return cache / "vllm" / "off"


class Switch:
    """The state of the switch. Where the file cannot be seen, the last state stays, and the log says so once."""

    def __init__(self, path: Path):
        self.path = path
        self._name = os.fspath(path)  # not made anew for each look
        self.is_off = self._has_failed = False
        self._next_look = -float("inf")

    def look(self, now: float) -> bool:
        """Return true if speculation is off. now: seconds of a clock that never goes back, for one look a second."""
        if not self._next_look - LOOK_SECONDS <= now < self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._look()
        return self.is_off

    def _look(self) -> None:
        try:
            os.stat(self._name)
            self.is_off = True
        except (FileNotFoundError, NotADirectoryError):
            self.is_off = False
        except OSError as error:
            if not self._has_failed:
                text = "%s cannot be seen (%s): speculation stays %s, as it was."
                logger.warning(text, self.path, error, "off" if self.is_off else "on")
            self._has_failed = True
            return
        self._has_failed = False


def main(arguments: list[str]) -> int:
    """Make or remove the file. arguments: `off` or `on`, and options. Exit status: 0, 2 where that is not possible."""
    parser = argparse.ArgumentParser(
        prog="smartspec vllm", description="Switches speculation in all servers of a cache folder off, or on again."
    )
    parser.add_argument("state", choices=["off", "on"])
    parser.add_argument(
        "--cache", type=Path, help="the servers' setting `cache` (default: $SMARTSPEC_CACHE, else ours)"
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
    if not any(path.parent.glob("*.prom")):
        print(f"No server has left metrics in {path.parent} yet: is it the cache folder of yours?")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
