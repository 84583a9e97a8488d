"""A host whose requests share one draft length in each step, as vLLM with captured graphs: a closed
loop of requests with prompts of 128 tokens and answers of 128 to 256, in virtual time.

A head's first pass runs in every step. The controller begins with a cost model of few requests, as
after a start. Each policy gets the same requests, answers and right draft tokens.
"""

from dataclasses import dataclass, field

import numpy as np

from lib.gpu_replay.step_times import JITTER, LENGTHS, PROMPT, StepTimes
from smartspec.control import (
    BatchView,
    Controller,
    CostCurve,
    Drafted,
    DrafterSpec,
    DrafterView,
    LatencyModel,
    Outcome,
    ProfileSample,
    StepSeconds,
)
from smartspec.core.policy_names import parse_policy
from smartspec.sim.world.acceptance import GroundTruthAcceptance, Places
from smartspec.sim.world.class_spec import parse_classes

LONGEST = max(LENGTHS)
HEAD = DrafterSpec("head", has_passes=True, kept_passes=1)
MOST_PROMPTS = 64  # that begin in a step
ANSWERS = (128, 257)
CONTEXT = 200  # tokens of a profiled request


@dataclass(frozen=True)
class Step:
    """began, seconds: of virtual time. tokens: emitted ones. length: draft tokens of a row, None
    where no request decoded."""

    began: float
    seconds: float
    tokens: int
    length: int | None


@dataclass
class _Rows:
    """Requests that decode, int [R] each. left: tokens of the answer to come."""

    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    left: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    emitted: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


class Host:
    """num_requests under way at all times. policy: as in policy_names. acceptance: see class_spec;
    requests get its classes in turn."""

    def __init__(
        self,
        times: StepTimes,
        policy: str,
        num_requests: int,
        acceptance: str,
        seed: int,
    ):
        self._times = times
        self._classes = parse_classes(acceptance)
        self._acceptance = GroundTruthAcceptance(self._classes, LONGEST, seed=seed)
        model = start_model(times)
        self._controller = Controller(
            parse_policy(policy, LONGEST), LONGEST, model, drafters=(HEAD,), strict=True
        )
        self._noise = np.random.default_rng([seed, 0])
        self._answers = np.random.default_rng([seed, 1])
        self._waiting, self._num_begun = num_requests, 0
        self._rows = _Rows()
        self.now = 0.0

    def run(self, until: float) -> list[Step]:
        """All steps that begin before that second."""
        steps = []
        while self.now < until:
            steps.append(self._step())
        return steps

    def _step(self) -> Step:
        rows, num_prompts = self._rows, min(self._waiting, MOST_PROMPTS)
        view = self._view(num_prompts)
        plan = self._controller.plan(view)
        length = int(plan.lengths.max(initial=0))
        lengths = np.full(len(rows.ids), length)
        right = self._acceptance.num_right(Places(rows.ids, rows.emitted, self.now))
        accepted = np.minimum(right, lengths)
        seconds = self._times.seconds(length, len(rows.ids) + num_prompts, num_prompts)
        seconds *= float(np.exp(JITTER * self._noise.standard_normal()))
        given = np.minimum(accepted + 1, rows.left)
        tokens = int(given.sum()) + num_prompts
        told = Drafted(lengths), lengths, accepted, StepSeconds(0.0, seconds, 0.0)
        self._controller.learn(plan, Outcome.of(view, plan, *told, num_emitted=tokens))
        self._advance(given, num_prompts)
        step = Step(self.now, seconds, tokens, length if len(lengths) else None)
        self.now += seconds
        return step

    def _view(self, num_prompts: int) -> BatchView:
        rows, caps = self._rows, np.full(len(self._rows.ids), LONGEST)
        return BatchView(
            request_ids=rows.ids,
            context_tokens=PROMPT + rows.emitted,
            row_caps=caps,
            drafters=(DrafterView(caps),),
            num_prefills=num_prompts,
            prefill_tokens=PROMPT * num_prompts,
            prefill_context_tokens=PROMPT * num_prompts,
            prefill_attended_tokens=num_prompts * PROMPT * PROMPT / 2,
            now=self.now,
        )

    def _advance(self, given: np.ndarray, num_prompts: int) -> None:
        """Requests that have ended make place for as many new ones, after those of this step."""
        rows = self._rows
        left, emitted = rows.left - given, rows.emitted + given
        goes_on = left > 0
        for request in rows.ids[~goes_on].tolist():
            self._acceptance.end(request)
            self._controller.end(request)
        self._waiting += int((~goes_on).sum()) - num_prompts
        new = self._num_begun + np.arange(num_prompts)
        self._num_begun += num_prompts
        for request in new.tolist():
            self._acceptance.begin(request, request % len(self._classes))
        self._rows = _Rows(
            np.append(rows.ids[goes_on], new),
            np.append(left[goes_on], self._answers.integers(*ANSWERS, size=num_prompts) - 1),
            np.append(emitted[goes_on], np.ones_like(new)),
        )


def start_model(times: StepTimes) -> LatencyModel:
    """What is known after a start: steps of one to four requests, and of a long prompt."""
    alone = [_sample(times, n, k, 0) for n in (1, 4) for k in LENGTHS]
    beside = [_sample(times, n, k, 1) for n in (3, 4) for k in LENGTHS]
    long = ProfileSample(2048, 2048, 16, 0.055, scored_tokens=16)
    return LatencyModel(CostCurve.fit([*alone, *beside, long]), (CostCurve.linear(0.0002, 0.0),))


def _sample(times: StepTimes, rows: int, length: int, num_prompts: int) -> ProfileSample:
    fed, num_requests = rows * (length + 1), rows + num_prompts
    return ProfileSample(
        fed + PROMPT * num_prompts,
        rows * CONTEXT,
        num_requests,
        times.seconds(length, num_requests, num_prompts),
        scored_tokens=fed + num_prompts,
    )
