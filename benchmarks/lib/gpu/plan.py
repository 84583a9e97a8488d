"""What a run measures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MAX_SEQS = 256
Rates = tuple[float, float]  # acceptance of requests with even and with odd seeds
MIXED, HIGH, LOW, NONE = (0.5, 0.85), (0.85, 0.85), (0.3, 0.3), (0.0, 0.0)


def named(rates: Rates) -> str:
    return "/".join(map(str, rates))


@dataclass(frozen=True)
class Plan:
    """folder: of what a run makes and keeps beside its results. levels: requests at a time.
    lengths: of drafts, beside 0, that graphs are captured for. policies: only these, none for all.
    seconds: of a cell, after `ramp` seconds. settings: of the plugin, beside its policy; without
    its guard, whose windows without drafts would be in some cells. shares, arrivals: rates as
    shares of what vLLM serves without speculation, and seconds of arrivals at each. model_len:
    largest context of the large model. emulates: no GPU."""

    folder: Path
    output: Path
    levels: tuple[int, ...] = (1, 4, 16, 64, 128, 256)
    lengths: tuple[int, ...] = (1, 3, 5)
    policies: tuple[str, ...] = ()
    seconds: float = 1.6
    ramp: float = 0.5
    settings: Mapping[str, object] = field(default_factory=lambda: {"guard": 0.0})
    shares: tuple[float, ...] = (0.8, 1.0, 1.2)
    arrivals: float = 20.0
    model_len: int = 8192
    emulates: bool = False

    @property
    def longest(self) -> int:
        return max(self.lengths)

    @property
    def some_levels(self) -> tuple[int, ...]:
        """Where acceptance is varied."""
        return tuple(level for level in (16, 128) if level in self.levels) or self.levels[-1:]

    def wanted(self, *policies: str) -> tuple[str, ...]:
        return tuple(name for name in policies if not self.policies or name in self.policies)

    def table(self, max_seqs: int = MAX_SEQS) -> list[list[int]]:
        """A batch-size table for vLLM, which captures graphs for the lengths that it names."""
        down = sorted(self.lengths, reverse=True)
        rows = [[size, size, length] for size, length in enumerate(down, 1)]
        return [*rows, [len(down) + 1, max_seqs, 0]]

    def sizes(self, levels: tuple[int, ...] | None = None) -> list[int]:
        """Tokens of steps with a graph. vLLM looks at the next larger size alone, so each level and
        length has one."""
        return sorted(
            {
                level * (1 + length)
                for level in levels or self.levels
                for length in (0, *self.lengths)
            }
        )

    def open_sizes(self) -> list[int]:
        """The same where any number of requests has a graph. Each size is a multiple of 4, so that
        lengths 0, 1 and 3 all have one of it."""
        most = max(self.levels) * (1 + self.longest)
        fine = {
            4,
            *range(8, 64, 8),
            *range(64, 256, 32),
            *range(256, 512, 64),
            *range(512, 1025, 128),
        }
        return sorted(size for size in fine if size <= most)

    def ragged_sizes(self) -> list[int]:
        """The same where any mix of lengths has a graph."""
        most = max(self.levels) * (1 + self.longest)
        fine = {*range(1, 8), *range(8, 128, 8), *range(128, 512, 32), *range(512, 1537, 128)}
        return sorted({size for size in fine if size <= most} | set(self.sizes()))
