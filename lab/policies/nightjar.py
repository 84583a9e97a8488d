"""Nightjar: a bandit over draft lengths by batch size that knows what turning speculation on again
costs (arXiv 2512.22420, equation 4; the exploration is ADA-BINGREEDY as in the authors' code)."""

import math
from dataclasses import dataclass, field

import numpy as np

from lab.policies.bandit import batch_class, seconds_per_token
from smartspec.control.estimates import Estimates
from smartspec.control.planning import model_free_first, plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import BatchView, Outcome, Plan, with_fields

MAX_LENGTH = 5


@dataclass
class Arms:
    """What is known at one class of batch sizes. counts, seconds: [lengths], steps and mean seconds
    per token."""

    counts: np.ndarray
    seconds: np.ndarray
    block: int = 0
    bin: int = 0
    steps_left: int = 0
    length: int = 0
    explores: bool = field(default=False)

    def begin_bin(self, random: np.random.Generator) -> None:
        """Block j has 2^(j-1) steps, in bins of the root of that; bin b explores with probability 1
        / sqrt(b)."""
        block_steps = 2 ** max(self.block - 1, 0)
        bin_steps = max(1, math.isqrt(block_steps))
        self.bin += 1
        if not self.block or (self.bin - 1) * bin_steps >= block_steps:
            self.block, self.bin = self.block + 1, 1
            bin_steps = max(1, math.isqrt(2 ** (self.block - 1)))
        self.steps_left = bin_steps
        self.explores = not self.counts.any() or bool(random.random() < 1 / math.sqrt(self.bin))
        if self.explores:
            self.length = int(random.integers(len(self.counts)))

    def best(self, switch_seconds: float) -> int:
        """The length of least seconds per token. switch_seconds: of turning speculation on, spread
        over the draft."""
        lengths = np.maximum(np.arange(len(self.counts)), 1)
        switch = np.where(np.arange(len(self.counts)) > 0, switch_seconds / lengths, 0.0)
        return int(np.where(self.counts > 0, self.seconds + switch, np.inf).argmin())


class Nightjar(Policy):
    """One length for all requests, 0 allowed: the one of least measured time per token at this
    batch size. After steps without drafts the other lengths are charged the pass that feeds a draft
    model what its KV lacks, divided by the length. A bin of steps keeps its length.

    max_length: the longest, 5; the published value was not found. Departures: batch sizes up to the
    same power of two share their arms; the price of the switch comes from the profile of the draft
    model instead of a table that was measured beforehand; steps with prefill teach nothing. Left
    out: the draft model never leaves the device, and the code's rule that turns speculation off
    above a request rate.
    """

    def __init__(self, max_length: int = MAX_LENGTH, seed: int = 0):
        self.max_length = max_length
        self._random = np.random.default_rng(seed)
        self._arms: dict[int, Arms] = {}
        self._last_length = 0

    def plan(self, view: BatchView, estimates: Estimates) -> Plan:
        arms = self._arms_of(view.num_rows, min(self.max_length, estimates.max_draft_tokens))
        if arms.steps_left == 0:
            arms.begin_bin(self._random)
            if not arms.explores:
                arms.length = arms.best(
                    0.0 if self._last_length else switch_seconds(view, estimates)
                )
        arms.steps_left -= 1
        self._last_length = arms.length
        return with_fields(plan_of_lengths(view, estimates, arms.length), settled=arms.length)

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        seconds = seconds_per_token(outcome)
        if seconds is None or plan.settled is None:
            return
        arms = self._arms.get(batch_class(outcome.view.num_rows))
        if arms is None:  # a host left rows of the plan out
            return
        arms.counts[plan.settled] += 1
        arms.seconds[plan.settled] += (seconds - arms.seconds[plan.settled]) / arms.counts[
            plan.settled
        ]

    def _arms_of(self, num_rows: int, longest: int) -> Arms:
        return self._arms.setdefault(
            batch_class(num_rows),
            Arms(np.zeros(longest + 1, dtype=np.int64), np.zeros(longest + 1)),
        )


def switch_seconds(view: BatchView, estimates: Estimates) -> float:
    """What the draft KV that lags adds to the first draft pass, in seconds; 0 for drafters without
    a model."""
    drafter = model_free_first(view, estimates)
    lagging, caught_up = (
        estimates.latency.draft_seconds(each, drafter, 1)[:, -1].sum()
        for each in (view, view.with_lags_up_to(0))
    )
    return float(lagging - caught_up)
