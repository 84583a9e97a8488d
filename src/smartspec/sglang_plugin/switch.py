"""The off switch: a file that is looked at once a second."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

SPACING = 1.0  # seconds between looks


def off_file(environment: Mapping[str, str]) -> Path:
    """The file that turns the policy off for as long as it is there: sglang/off in the cache folder."""
    folder = environment.get("SMARTSPEC_CACHE") or Path.home() / ".cache" / "smartspec"
    return Path(folder) / "sglang" / "off"


class Switch:
    """A file as it was at most a second ago, there or not; where that cannot be seen, as it was seen last."""

    def __init__(self, path: Path):
        self.path = path
        self._is_off, self._next_look = False, float("-inf")

    def look(self, now: float) -> bool:
        """True if it is off. now: in seconds."""
        if now >= self._next_look:
            self._next_look = now + SPACING
            with suppress(OSError):
                self._is_off = self.path.exists()
        return self._is_off
