"""A small engine over tiny models: random plans, few blocks, and requests that are served to their
ends."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tiny_models import VOCABULARY

from smartspec.control.records import Plan
from smartspec.core.batch import StepOutput
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.scheduler import Scheduler
from smartspec.engine.runtime.executor import LiveExecutor

GREEDY_AND_SAMPLED = pytest.mark.parametrize("temperature", [0.0, 1.0])


class RandomPlans:
    """Chains, or trees up to so wide, of random lengths and depths that change every step, and
    pauses in which the drafter is not called."""

    predicted_seconds = 0.0

    def __init__(self, seed: int = 0, pause: float = 0.4, max_width: int = 1):
        self.random, self.pause, self.max_width = np.random.default_rng(seed), pause, max_width
        self.num_tested = self.num_accepted = self.num_trees = 0

    def plan(self, view) -> Plan:
        view = view.queried(True)
        is_planned = self.random.random() >= self.pause
        longest = np.minimum(view.row_caps, view.draft_lengths[0])
        lengths = self.random.integers(0, longest + 1) * is_planned
        plan = Plan(lengths=lengths, drafter=np.zeros(view.num_rows, dtype=int))
        if self.max_width == 1:
            return plan
        depths = self.random.integers(0, 5, view.num_rows)
        return replace(plan, depths=depths, width=int(self.random.integers(1, self.max_width + 1)))

    def cut(self, plan, drafted):
        if self.max_width == 1:
            assert (drafted.lengths == plan.lengths).all()
            return drafted.lengths
        return self.some_of(plan, drafted)

    def some_of(self, plan, drafted):
        """Half of some drafts, which may be shorter than planned."""
        assert (drafted.lengths <= plan.lengths).all()
        is_cut = self.random.random(len(drafted.lengths)) < 0.3
        return np.where(is_cut, drafted.lengths // 2, drafted.lengths)

    def learn(self, plan, outcome) -> None:
        self.num_trees += outcome.parents is not None
        self.num_tested += int(outcome.tested.sum())
        self.num_accepted += int(outcome.accepted.sum())

    def end(self, request_id: int) -> None: ...


class AnyLength(RandomPlans):
    """As RandomPlans, of drafters that may not make drafts as long as planned."""

    cut = RandomPlans.some_of


def core_of(
    executor: LiveExecutor,
    controller: RandomPlans,
    num_blocks: int = 60,
    max_draft_tokens: int = 5,
    max_batched_tokens: int = 16,
) -> EngineCore:
    """num_blocks: of four tokens."""
    scheduler = Scheduler(
        BlockManager(num_blocks, 4, len(executor.runner.cache.keys[0])),
        max_batched_tokens=max_batched_tokens,
        max_model_len=executor.runner.max_len,
        max_draft_tokens=max_draft_tokens,
    )
    return EngineCore(scheduler, executor, controller)


def begin(core: EngineCore, requests: Iterable[Request], num_steps: int) -> list[StepOutput]:
    """Serve these for so many steps."""
    for request in requests:
        core.add_request(request)
    return [core.step(time.monotonic()) for _ in range(num_steps)]


def finish(core: EngineCore, requests: Iterable[Request] = ()) -> list[StepOutput]:
    """Serve these and all that are there to their ends."""
    steps = begin(core, requests, 0)
    while core.has_work:
        steps.append(core.step(time.monotonic()))
    return steps


def run(core: EngineCore, requests: list[Request]) -> list[Request]:
    """Serve them to their ends."""
    finish(core, requests)
    return requests


def requests_of(prompts: Iterable[Sequence[int]], **params) -> list[Request]:
    """Greedy if nothing else is said; their numbers are their seeds."""
    options = SamplingParams(**{"temperature": 0.0} | params)
    return [Request(i, prompt, options, seed=i) for i, prompt in enumerate(prompts)]


def generate(core: EngineCore, temperature: float = 0.0, grammar=None) -> list[Request]:
    """Prompts that begin alike."""
    random = np.random.default_rng(5)
    shared = random.integers(0, VOCABULARY, 8).tolist()
    prompts = [
        shared + random.integers(0, VOCABULARY, random.integers(1, 30)).tolist() for _ in range(7)
    ]
    requests = requests_of(prompts, max_tokens=25, temperature=temperature)
    for request in requests:
        request.grammar = grammar
    return run(core, requests)


def outputs(requests: list[Request]) -> list[list[int]]:
    return [request.output_token_ids.tolist() for request in requests]
