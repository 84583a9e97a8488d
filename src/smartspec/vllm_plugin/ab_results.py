"""What `--act` has found, by requests at a time: the ratio of speeds with speculation to without, and its interval.

The estimate is the mean of the pairs' log ratios, weighted by the tokens of the smaller window. Its interval, of 95 %,
is that of Student's t around a weighted mean, with the degrees of freedom of the effective number of pairs. Pairs are
kept as sums alone.
"""

import math
from dataclasses import dataclass, field, fields
from statistics import NormalDist

from smartspec.vllm_plugin.comparing import Pair
from smartspec.vllm_plugin.windows import Window

ALL = "all"
LEAST_PAIRS = 5  # for an interval
CONFIDENCE = 0.95
FORMAT = 1


@dataclass
class Side:
    """Sums over the windows of one side: see Window."""

    tokens: float = 0.0
    busy_seconds: float = 0.0
    request_seconds: float = 0.0

    def add(self, window: Window) -> None:
        self.tokens += window.tokens
        self.busy_seconds += window.busy_seconds
        self.request_seconds += window.request_seconds

    @property
    def speed(self) -> float:
        """Tokens per second and request."""
        return self.tokens / self.request_seconds if self.request_seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.busy_seconds if self.busy_seconds else 0.0


@dataclass
class Level:
    """Pairs with about as many requests at a time. weights, squares: sums of weights w and of w². weighted: of w x;
    squared_1, squared_2: of w² x and w² x², x being log ratios."""

    pairs: int = 0
    weights: float = 0.0
    squares: float = 0.0
    weighted: float = 0.0
    squared_1: float = 0.0
    squared_2: float = 0.0
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

    @property
    def ratio(self) -> float:
        return math.exp(self.weighted / self.weights)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the ratio; None while there are too few pairs."""
        if self.pairs < LEAST_PAIRS:
            return None
        mean = self.weighted / self.weights
        spread = max(self.squared_2 - 2 * mean * self.squared_1 + mean * mean * self.squares, 0.0)
        error = math.sqrt(spread * self.pairs / (self.pairs - 1)) / self.weights
        reach = error * t_quantile(max(self.weights**2 / self.squares - 1, 2.0))
        return math.exp(mean - reach), math.exp(mean + reach)


class Results:
    """levels: by the least requests at a time of a power of two ("1", "2", "4", ...), and of ALL."""

    def __init__(self, levels: dict[str, Level] | None = None):
        self.levels = levels or {}

    def add(self, pair: Pair) -> None:
        for name in (ALL, level_name(pair.off.requests)):
            self.levels.setdefault(name, Level()).add(pair)

    def to_dict(self) -> dict:
        """JSON-able."""
        levels = {
            name: {**vars(level), "on": vars(level.on), "off": vars(level.off)} for name, level in self.levels.items()
        }
        return {"format": FORMAT, "levels": levels}

    @staticmethod
    def from_dict(data: object) -> "Results":
        """ValueError says what is wrong with data."""
        if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("levels"), dict):
            raise ValueError("it is not of this format")
        return Results({str(name): _level(values) for name, values in data["levels"].items()})


def level_name(requests: float) -> str:
    """Of so many requests at a time, on the mean."""
    return str(2 ** int(math.log2(max(requests, 1.0))))


def t_quantile(freedom: float) -> float:
    """Of Student's t at (1 + CONFIDENCE) / 2: Fisher's expansion around the normal quantile (Abramowitz and Stegun
    26.7.5), within 4 % from 2 degrees of freedom on."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


def _level(values: object) -> Level:
    sides = {name: Side(**_numbers(Side, values, name)) for name in ("on", "off")}
    level = Level(**_numbers(Level, {"": values}, "") | sides)
    if level.pairs < 1 or level.weights <= 0 or level.squares <= 0:
        raise ValueError("a level has no pairs")
    level.pairs = int(level.pairs)
    return level


def _numbers(kind: type, owner: object, name: str) -> dict[str, float]:
    """The numbers of one of these, out of a JSON object's value. ValueError where one lacks, or is none."""
    values = owner.get(name) if isinstance(owner, dict) else None
    if not isinstance(values, dict):
        raise ValueError(f"{name or 'a level'} is {values!r}")
    names = [each.name for each in fields(kind) if each.type in (int, float, "int", "float")]
    for each in names:
        value = values.get(each)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{each} is {value!r}")
    return {each: values[each] for each in names}
