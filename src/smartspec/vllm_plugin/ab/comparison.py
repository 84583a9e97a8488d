"""The comparison of speculation with none: the windows of `--act`, and the guard that switches
speculation off where it is slower than none.

Each is a generator of windows (windows.py). It knows no clock, no scheduler and no file.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from smartspec.vllm_plugin.ab.windows import WINDOW, Part, Window, Windows

GUARD = "guard"  # the reason where speculation was slower than none
LEAST_RATIO = 0.97  # of the speed without speculation: below it, speculation goes off
LEAST_TOKENS, LEAST_STEPS = 100, 16  # of a window that counts: in --act, and also for the guard
ACT = {True: Part(None, 30.0, 5.0), False: Part(WINDOW, 30.0, 5.0)}
# The guard compares a second without drafts to the nine before it: once a minute, and three times
# in a row in doubt. until it compares again: at least so many, and times the last probe's
CALM_SECONDS, CALM_OF_PROBE = 50.0, 50.0
BEFORE, PROBE = Part(None, 9.0, 0.25, LEAST_STEPS), Part(WINDOW, 1.0, 0.25, LEAST_STEPS)
ROUNDS = 3
FIRST_REST_SECONDS, LONGEST_REST_SECONDS = 300.0, 3600.0  # until speculation is tried again


@dataclass(frozen=True)
class Pair:
    """Two windows, one right after the other: with speculation, and without."""

    on: Window
    off: Window

    @property
    def log_ratio(self) -> float:
        """The logarithm of the ratio of speeds, on to off."""
        return math.log(self.on.speed / self.off.speed)

    @staticmethod
    def of(first: Window, second: Window, least_tokens: int = 1) -> "Pair | None":
        """Return None where a window has too little traffic, or there was a long pause between
        them."""
        on, off = (first, second) if first.part.reason is None else (second, first)
        is_full = all(
            each.tokens >= least_tokens and each.steps >= LEAST_STEPS for each in (on, off)
        )
        is_adjacent = first.length <= 2 * max(first.part.seconds, first.busy_seconds)
        return Pair(on, off) if is_full and is_adjacent and on.speed and off.speed else None


@dataclass(frozen=True)
class Guard:
    """A watch over the speed, which switches speculation off."""

    least_ratio: float  # of the speed without speculation
    on_ratio: Callable[[float], None]  # called with each ratio that is measured
    # called with the ratio of 30 s, the requests at a time, the seconds off
    on_rest: Callable[[float, float, float], None]

    def watch(self) -> Windows:
        """Measure one second of sixty without drafts."""
        calm = CALM_SECONDS
        while True:
            yield Part(None, calm, is_measured=False)
            pair, probe_seconds = yield from _round()
            calm = max(CALM_SECONDS, CALM_OF_PROBE * probe_seconds)
            if pair is not None:
                self.on_ratio(math.exp(pair.log_ratio))
                if pair.log_ratio < 0:
                    yield from self.judge()

    def judge(self) -> Windows:
        """Measure for about 30 s. Speculation goes off where all rounds are slower than none, and
        their mean is below the least ratio. After a rest, twice as long each time, it is judged
        again."""
        rest = FIRST_REST_SECONDS
        while True:
            pairs = []
            for _ in range(ROUNDS):
                pair, _ = yield from _round()
                if pair is None or pair.log_ratio >= 0:
                    return
                pairs.append(pair)
            ratio = math.exp(fmean([pair.log_ratio for pair in pairs]))
            self.on_ratio(ratio)
            if ratio >= self.least_ratio:
                return
            self.on_rest(ratio, fmean([pair.off.requests for pair in pairs]), rest)
            yield Part(GUARD, rest, is_measured=False)
            rest = min(2 * rest, LONGEST_REST_SECONDS)


def compare(
    on_pair: Callable[[Pair], None], guard: Guard | None, first_is_on: Callable[[], bool]
) -> Windows:
    """Measure 30 s with speculation and 30 s without, of which the first 5 do not count.
    first_is_on: draws the order of a pair; the next pair has the other order. So traffic that
    repeats every minute, or grows, favours neither. After a pair below the guard's least ratio, the
    guard judges."""
    while True:
        order = first_is_on()
        for is_on in (order, not order):
            first = yield ACT[is_on]
            second = yield ACT[not is_on]
            pair = Pair.of(first, second, LEAST_TOKENS)
            if pair is None:
                continue
            on_pair(pair)
            if guard is not None and math.exp(pair.log_ratio) < guard.least_ratio:
                yield from guard.judge()


def _round():
    """Return a pair of windows of the guard, None without traffic, and the seconds of the one
    without drafts."""
    on = yield BEFORE
    off = yield PROBE
    return Pair.of(on, off), off.length
