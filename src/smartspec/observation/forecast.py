"""Forecasts of the observed traffic, for each draft length at a number of requests at a time.

A load is a closed one: so many requests are under way, and one that ends is followed by the next.
Prompts come as often, and are as long, as observed. Then tokens per second are the tokens of a mean
step over its time, and a request gets its share of them.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace
from math import exp, sqrt

import numpy as np

from smartspec.observation.acceptance import BETWEEN, BEYOND, RANKS, Draft, draft_of
from smartspec.observation.loads import Load
from smartspec.observation.records import BENDS, COLUMN, Observation, level_of, total
from smartspec.observation.step_times import FEATURES, CellTimes, StepTimes

OFF = -1  # as a length: a server without speculation, whose steps have no draft pass
LEAST_STEPS = 20  # of a load and a length that count as seen
NUM_DRAWS, INTERVAL = 100, (0.05, 0.95)
NEAR = 1.5  # a load within this factor of those seen is between them
# Where drafts are looked up, what a server without speculation saves of a step without drafts: the
# lookup, and sampling by rejection. Mean and doubt. vLLM's CPU build with ngram: 0.06 to 0.14
# (docs/results/vllm.md), an H100: 0 to 0.03.
SAVED = {True: (0.05, 0.04), False: (0.015, 0.015)}  # by whether it is a CPU


@dataclass(frozen=True)
class Forecast:
    """What is known, or one draw of what it may be."""

    times: StepTimes
    drafts: dict[int, Draft]  # by length
    # the observed traffic, in means
    chunks: float  # of prefill, per emitted token
    tokens_per_chunk: float  # of prompts
    ends: float  # share of chunks that end a prompt
    context: float  # tokens in the KV of a request
    most_fed: float  # tokens that fit into a step
    has_passes: bool  # of a draft model
    saved: float  # see SAVED
    # of a load's measured seconds and accepted tokens, in standard deviations
    luck: tuple[float, float] = (0.0, 0.0)

    @staticmethod
    def of(observation: Observation, times: StepTimes, drafts: dict[int, Draft]) -> "Forecast":
        """The likeliest one."""
        sums, setup = total(observation.cells.values()), observation.setup
        chunks = max(sums["prefills"], 1e-9)
        return Forecast(
            times,
            drafts,
            chunks=sums["prefills"] / max(sums["emitted_tokens"], 1.0),
            tokens_per_chunk=sums["prefill_tokens"] / chunks,
            ends=min(observation.arrivals.requests / chunks, 1.0),
            context=sums["context_tokens"] / max(sums["requests"], 1.0),
            most_fed=float(setup.get("max_batched_tokens") or np.inf),
            has_passes=bool(setup.get("has_passes")),
            saved=_saved(setup)[0],
        )

    def step(self, requests: float, length: int, accepts: float = 1.0) -> tuple[float, float]:
        """Tokens that a mean step emits, and its seconds, where so many times the usual draft
        tokens are accepted."""
        draft = self.drafts[length]
        tokens = 1.0 + min(draft.accepted * accepts, max(draft.verified, draft.accepted))
        ending = 1.0 - self.chunks * self.ends + self.chunks * tokens
        prefills = self.chunks * tokens * requests / ending
        decoding = requests - prefills
        emitted = decoding * tokens + prefills * self.ends
        counts = np.arange(int(prefills + 6 * sqrt(prefills) + 8))
        chances = _poisson(prefills, len(counts))
        fed = decoding * (1 + draft.verified) + counts * self.tokens_per_chunk
        fed = np.clip(fed, 1.0, max(self.most_fed, 1.0))
        passes = max(length, 1) if self.has_passes and length != OFF else 0
        size = {
            "steps": 1.0, "fed_tokens": chances @ fed, "beyond": 0.0, "requests": requests,
            "context_tokens": requests * self.context, "mixed": 1.0 - chances[0],
            "drafting": 1.0 - max(1.0 - draft.share, 0.0) ** max(decoding, 0.0),
            "passes": passes, "pass_rows": passes * decoding,
        }  # fmt: skip
        sizes = np.tile([size[name] for name in FEATURES], (len(BENDS), 1))
        beyond = np.maximum(fed[:, None] - np.array(BENDS), 0.0)
        sizes[:, FEATURES.index("beyond")] = chances @ beyond
        saved = self.saved if length == OFF else 0.0
        return emitted, self.times.seconds(sizes) * (1.0 - saved)

    def tokens_per_second(self, requests: float, length: int) -> float:
        emitted, seconds = self.step(requests, length)
        return emitted / seconds

    def speeds(self, load: Load) -> list[float]:
        """Tokens per second by length, right for what was measured at this load: its requests
        accept as many tokens as there, and times are off by the factor by which those of its own
        lengths are."""
        factor, of_accepted = np.exp(np.array(self.luck) * load.doubt)
        own = {k: n for k, n in load.lengths.items() if k in self.drafts}
        usual = sum(n * self.drafts[k].accepted for k, n in own.items())
        accepts = load.accepted * sum(own.values()) / usual if usual else 1.0
        if own:
            steps = [(n, *self.step(load.requests, k, accepts)) for k, n in own.items()]
            seconds = sum(n * each for n, _, each in steps)
            factor *= load.tokens_per_second * seconds / sum(n * tokens for n, tokens, _ in steps)
        found = [self.step(load.requests, k, accepts * of_accepted) for k in self.drafts]
        return [factor * tokens / each for tokens, each in found]

    def best(self, requests: float, least: int = 0) -> int:
        """The length with most tokens per second, of those that are at least so long."""
        lengths = [length for length in self.drafts if length >= least]
        return max(lengths, key=lambda length: self.tokens_per_second(requests, length))

    def crossover(self, most: int) -> int | None:
        """The fewest requests at a time from which on no speculation makes most, up to `most`. None
        if there are none."""
        loads = [0, *loads_up_to(most)]
        last = next(i for i in reversed(range(len(loads))) if not i or self._gain(loads[i]) > 0)
        if loads[last] == most:
            return None
        between = range(loads[last] + 1, loads[last + 1])
        return between.start + bisect_left(between, True, key=lambda load: self._gain(load) <= 0)

    def _gain(self, requests: int) -> float:
        best = self.tokens_per_second(requests, self.best(requests, least=1))
        return best - self.tokens_per_second(requests, OFF)


class Forecasts:
    """The likeliest forecast, and draws of what it may be. longest: longest draft to look at."""

    def __init__(self, observation: Observation, longest: int, *, num_draws: int = NUM_DRAWS):
        self.observation = observation
        drafts = {length: draft_of(observation, length) for length in range(OFF, longest + 1)}
        cells = CellTimes.of(observation)
        self._largest_fed = cells.means[:, COLUMN["fed_tokens"]].max()
        self.likeliest = Forecast.of(observation, cells.fit(), drafts)
        rng = np.random.default_rng(0)
        self.draws = [self._draw(cells, rng) for _ in range(num_draws)]

    def known(self, requests: float, length: int) -> str:
        """The state of knowledge of this load with this length: seen, between what was seen, or
        beyond it. No server that is observed is without a draft pass, if it has any."""
        has_passes, draft = self.likeliest.has_passes, self.likeliest.drafts[length]
        cells = {k: cell for k, cell in self.observation.cells.items() if cell[0] >= LEAST_STEPS}
        if not cells or (length == OFF and has_passes):
            return BEYOND
        here = [(k, tokens) for level, k, tokens in cells if level == level_of(requests)]
        if any(k == length if length > 0 else not tokens for k, tokens in here):
            return draft.known
        _, lengths, drafted = zip(*cells, strict=True)
        loads = [total(some.values()) for some in self.observation.by_level.values()]
        sizes = [sums["requests"] / n for sums in loads if (n := sums["steps"]) >= LEAST_STEPS]
        is_near = min(sizes) / NEAR <= requests <= max(sizes) * NEAR
        is_near &= requests * (1 + draft.verified) <= NEAR * self._largest_fed
        is_near &= min(drafted) <= draft.verified <= max(drafted)
        if has_passes:  # what a pass costs shows where there were more and fewer
            is_near &= min(lengths) <= length <= max(lengths)
        return max(BETWEEN if is_near else BEYOND, draft.known, key=RANKS.index)

    def _draw(self, cells: CellTimes, rng: np.random.Generator) -> Forecast:
        times = cells.draw(self.likeliest.times, rng)
        shift = rng.standard_normal()  # of all lengths alike: they are of the same traffic
        drafts = {
            length: replace(draft, accepted=max(draft.accepted + shift * draft.deviation, 0.0))
            for length, draft in self.likeliest.drafts.items()
        }
        *luck, of_saved = rng.standard_normal(3).tolist()
        mean, doubt = _saved(self.observation.setup)
        saved = mean + of_saved * doubt
        return replace(self.likeliest, times=times, drafts=drafts, saved=saved, luck=tuple(luck))


def _saved(setup: dict) -> tuple[float, float]:
    return (0.0, 0.0) if setup.get("has_passes") else SAVED[setup.get("platform") == "cpu"]


def loads_up_to(most: int) -> list[int]:
    """Half powers of two from 1 on, and most."""
    return sorted(
        {min(round(2 ** (level / 2)), most) for level in range(level_of(most) + 1)} | {most}
    )


def _poisson(mean: float, count: int) -> np.ndarray:
    """Chances of 0, 1, ... prefills in a step, that add up to 1: float [count]."""
    chances = np.cumprod(np.append(exp(-min(mean, 700.0)), mean / np.arange(1, count)))
    return chances / chances.sum()
