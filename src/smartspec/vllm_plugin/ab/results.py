"""Results of `--act`, by requests at a time: the ratio of speeds with speculation to without, and
its interval.

The estimate is the mean of the pairs' log ratios, weighted by the tokens of the smaller window. Its
interval, of 95 %, is that of Student's t around a weighted mean, with the degrees of freedom of the
effective number of pairs. Pairs are kept as sums alone, by hour: those of the last KEPT_HOURS
count.

Results survive a restart. Servers of one set-up that share a cache folder, and replicas, have files
of their own. A lock says which files are in use: it ends with the process, however that ends.
"""

import fcntl
import hashlib
import json
import logging
import math
import os
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import NormalDist

from smartspec.observation.files import write_json
from smartspec.vllm_plugin.ab.comparison import Pair
from smartspec.vllm_plugin.ab.windows import Side

logger = logging.getLogger("vllm.smartspec")

ALL = "all"
LEAST_PAIRS = 5  # for an interval
CONFIDENCE = 0.95
FORMAT = 2
KEPT_HOURS = 24  # traffic changes: a day has its busy and its quiet hours
MOST_FILES = 64  # of one set-up in a folder


@dataclass
class Level:
    """Sums over pairs with about as many requests at a time, of weights w and log ratios x."""

    pairs: int = 0
    weights: float = 0.0  # of w
    squares: float = 0.0  # of w²
    weighted: float = 0.0  # of w x
    squared_1: float = 0.0  # of w² x
    squared_2: float = 0.0  # of w² x²
    on: Side = field(default_factory=Side)
    off: Side = field(default_factory=Side)

    def add(self, pair: Pair) -> None:
        w, x = float(min(pair.on.tokens, pair.off.tokens)), pair.log_ratio
        self.pairs += 1
        self.weights += w
        self.squares += w * w
        self.weighted += w * x
        self.squared_1 += w * w * x
        self.squared_2 += w * w * x * x
        self.on.add(pair.on)
        self.off.add(pair.off)

    def include(self, other: "Level") -> None:
        """Add the pairs of another level."""
        for name in ("pairs", "weights", "squares", "weighted", "squared_1", "squared_2"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.on.add(other.on)
        self.off.add(other.off)

    @property
    def ratio(self) -> float:
        return math.exp(self.weighted / self.weights)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the ratio; None while there are too few pairs."""
        if self.pairs < LEAST_PAIRS:
            return None
        mean = self.weighted / self.weights
        spread = max(self.squared_2 - 2 * mean * self.squared_1 + mean * mean * self.squares, 0.0)
        error = math.sqrt(spread * self.pairs / (self.pairs - 1)) / self.weights
        reach = error * t_quantile(max(self.weights**2 / self.squares - 1, 2.0))
        return math.exp(mean - reach), math.exp(mean + reach)


@dataclass
class Hour:
    """The pairs of an hour, by level."""

    first: float  # seconds of the epoch at which the first of them ended
    levels: dict[str, Level] = field(default_factory=dict)


class Results:
    """Levels by the least requests at a time, a power of two ("1", "2", "4", ...), and one of ALL.
    hours: by number, in hours of the epoch."""

    def __init__(self, hours: dict[int, Hour] | None = None):
        self.hours = hours or {}

    def add(self, pair: Pair, now: float | None = None) -> None:
        """Add a pair that ended now, in seconds of the epoch, and drop those that are too old."""
        now = time.time() if now is None else now
        hour = self.hours.setdefault(int(now // 3600), Hour(now))
        for name in (ALL, level_name(pair.off.requests)):
            hour.levels.setdefault(name, Level()).add(pair)
        self.drop_old(now)

    def drop_old(self, now: float) -> None:
        self.hours = {n: hour for n, hour in self.hours.items() if n > now // 3600 - KEPT_HOURS}

    @property
    def levels(self) -> dict[str, Level]:
        """The levels of all hours."""
        found: dict[str, Level] = {}
        for hour in self.hours.values():
            for name, level in hour.levels.items():
                found.setdefault(name, Level()).include(level)
        return found

    @property
    def since(self) -> float | None:
        """When the oldest pair ended, in seconds of the epoch; None without pairs."""
        return min((hour.first for hour in self.hours.values()), default=None)

    def to_dict(self) -> dict:
        """Return JSON-able data."""
        return {"format": FORMAT, "hours": {str(n): asdict(hour) for n, hour in self.hours.items()}}

    @staticmethod
    def from_dict(data: object) -> "Results":
        """Return results of such data. ValueError says what is wrong with it."""
        if (
            not isinstance(data, dict)
            or data.get("format") != FORMAT
            or not isinstance(data.get("hours"), dict)
        ):
            raise ValueError("it is not of this format")
        return Results({int(number): _hour(values) for number, values in data["hours"].items()})


def level_name(requests: float) -> str:
    """Return the name of the level of so many requests at a time, on the mean."""
    return str(2 ** int(math.log2(max(requests, 1.0))))


def t_quantile(freedom: float) -> float:
    """The quantile of Student's t at (1 + CONFIDENCE) / 2, within 4 % from 2 degrees of freedom on:
    Fisher's expansion around the normal quantile (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


def _hour(values: object) -> Hour:
    first = _numbers(Hour, {"": values}, "")["first"]
    levels = values.get("levels")  # type: ignore[attr-defined]
    if not isinstance(levels, dict):
        raise ValueError(f"levels is {levels!r}")
    return Hour(first, {str(name): _level(each) for name, each in levels.items()})


def _level(values: object) -> Level:
    sides = {name: Side(**_numbers(Side, values, name)) for name in ("on", "off")}
    level = Level(**_numbers(Level, {"": values}, "") | sides)
    if level.pairs < 1 or level.weights <= 0 or level.squares <= 0:
        raise ValueError("a level has no pairs")
    level.pairs = int(level.pairs)
    return level


def _numbers(kind: type, owner: object, name: str) -> dict[str, float]:
    """Return the numbers of a record from a value of a JSON object. ValueError where one is
    missing, or no number."""
    values = owner.get(name) if isinstance(owner, dict) else None
    if not isinstance(values, dict):
        raise ValueError(f"{name or 'a level'} is {values!r}")
    names = [each.name for each in fields(kind) if each.type in (int, float, "int", "float")]
    for each in names:
        value = values.get(each)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise ValueError(f"{each} is {value!r}")
    return {each: values[each] for each in names}


class ResultsFile:
    """The first file of this set-up that no other server has. Where no file is free or can be made,
    nothing is kept, and the log says why. key: all that results depend on, JSON-able."""

    def __init__(self, cache: Path, key: dict):
        self.key, self.path = key, None
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
        try:
            (cache / "vllm").mkdir(parents=True, exist_ok=True)
            self._lock, self.path = _first_free(cache / "vllm", digest)
        except OSError as error:
            logger.warning("results of --act are not kept for the next start (%s)", error)
        self._is_unwritable = False

    def close(self) -> None:
        """Leave the file to the next server."""
        if self.path is not None:
            os.close(self._lock)
            self.path = None

    def load(self) -> Results:
        """Return the results of earlier servers. An unusable file is put aside, after a line in the
        log."""
        if self.path is None:
            return Results()
        try:
            data = json.loads(self.path.read_text("utf-8"))
            if not isinstance(data, dict) or data.get("key") != self.key:
                raise ValueError("it is of another set-up")
            results = Results.from_dict(data.get("results"))
            results.drop_old(time.time())
            return results
        except FileNotFoundError:
            return Results()
        except (OSError, ValueError) as error:
            aside = self.path.with_suffix(".unusable")
            logger.warning(
                "results of --act in %s are unusable (%s): they begin anew", self.path, error
            )
            try:
                self.path.replace(aside)
                logger.warning("that file is now %s", aside)
            except OSError:
                self.path = None  # it is not overwritten
            return Results()

    def store(self, results: Results) -> None:
        """Write it whole or not at all. Where that is not possible, the log says so once, and it is
        tried again with the next results, which have all."""
        if self.path is None:
            return
        try:
            write_json(self.path, {"key": self.key, "results": results.to_dict()})
        except OSError as error:
            if not self._is_unwritable:
                text = (
                    "results of --act cannot be written to %s (%s): they are kept in memory until "
                    "they can"
                )
                logger.warning(text, self.path, error)
            self._is_unwritable = True
        else:
            self._is_unwritable = False


def _first_free(folder: Path, digest: str) -> tuple[int, Path]:
    for number in range(MOST_FILES):
        path = folder / f"ab-{digest}-{number}.json"
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        if number:
            logger.info(
                "another server of this set-up has this cache folder: results of --act are kept in "
                "%s",
                path,
            )
        return lock, path
    raise OSError(
        f"{MOST_FILES} servers of this set-up use {folder}: give this one a cache folder of its own"
    )
