"""Policy `observe`: vLLM drafts as it does without SmartSpec, and sums over its steps tell of draft
lengths.

The methods that the scheduler calls have the names of Speculation's, and change nothing. Work that
can wait is done while the workers run a step. The sums go to a file of the cache folder, in a
thread of their own; a folder that cannot be written costs one warning.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from smartspec.observation.files import observation_path, write_json
from smartspec.observation.records import DraftOutcome, Observation
from smartspec.vllm_plugin.compatibility import is_adaptive
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.handover import Handover
from smartspec.vllm_plugin.settings import Settings
from smartspec.vllm_plugin.setup import describe_setup, kv_memory
from smartspec.vllm_plugin.step.callers import class_of
from smartspec.vllm_plugin.step.decision import EmittedTokens, Step
from smartspec.vllm_plugin.step.metrics import Metrics, make_metrics
from smartspec.vllm_plugin.step.under_way import StepsUnderWay

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets

SUM_STEPS = 64  # steps that are summed at once
# at most, until what is summed is written; where vLLM waits for requests
WRITE_SECONDS, IDLE_WRITE_SECONDS = 10.0, 2.0
FinishedStep = tuple[Step, EmittedTokens]


class Observer:
    """The object that vLLM's scheduler calls. has_passes: drafts are made by passes of a model.
    is_adaptive: vLLM's workers choose the drafts that they verify. write: called with an
    observation, and the seconds after which it is to be in its file, unless it is written sooner:
    then the newest is."""

    def __init__(
        self,
        scheduler,
        observation: Observation,
        write: Callable[[Observation, float], None],
        metrics: Metrics,
        *,
        has_passes: bool,
        is_adaptive: bool,
    ):
        self._scheduler, self.observation, self._write_soon = scheduler, observation, write
        self._metrics, self._has_passes, self._clock = metrics, has_passes, time.perf_counter
        self._classes: dict[str, str] = {}  # of requests under way
        self._steps = StepsUnderWay(scheduler, is_adaptive, lambda: self._clock())
        self._last_length = scheduler.num_spec_tokens
        self._sum_queue: list[FinishedStep] = []
        # those whose drafts' outcomes are not counted yet
        self._count_queue: list[FinishedStep] = []
        self._ended_requests: list[str] = []
        self._outcomes: Counter[tuple[str, int, int, int]] = Counter()
        self._start: float | None = None

    def before_schedule(self) -> None:
        """Do nothing: vLLM decides."""

    def after_schedule(self, output) -> None:
        """Note a step, before vLLM counts its tokens as computed."""
        self._ended_requests += output.finished_req_ids
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            return
        is_off = self._scheduler.off_reason is not None
        step = self._steps.add(output, 0 if is_off else self._last_length)
        if step.prefill.num_prefills:
            for name in scheduled:
                if name not in self._classes:
                    self._meet(name, self._scheduler.requests[name])
        self._last_length = output.num_spec_tokens_to_schedule

    def while_running(self) -> None:
        """Do work that can wait: a step has been handed to the workers, so no step waits for it."""
        for finished in self._count_queue:
            self._count(*finished)
        self._count_queue.clear()
        for name in self._ended_requests:
            self._classes.pop(name, None)
        self._ended_requests.clear()
        if len(self._sum_queue) >= SUM_STEPS:
            self._sum()
            self._write_soon(self.observation, WRITE_SECONDS)

    def before_update(self, output, model_output) -> FinishedStep | None:
        """Return a finished step and its tokens, None for a step that fed nothing."""
        finished = self._steps.finish(output, model_output)
        if finished is not None:
            arrivals, now = self.observation.arrivals, self._clock()
            if self._start is None:  # again after a time in which nothing was observed
                self._start = finished[0].start - arrivals.seconds
            arrivals.seconds = max(now - self._start, 0.0)
        return finished

    def after_update(self, finished: FinishedStep | None, outputs: Mapping) -> None:
        """Keep a finished step, which is summed later."""
        if finished is not None:
            step, tokens = finished
            finished = step, tokens.with_given(outputs)
            self._sum_queue.append(finished)
            self._count_queue.append(finished)
        if not self._scheduler.has_unfinished_requests():
            self._steps.pause()
            self.while_running()
            self._sum()
            self._write_soon(self.observation, IDLE_WRITE_SECONDS)

    def forget_acceptance(self) -> None:
        """Do nothing: an observation is of all weights that were served."""

    def start_over(self) -> None:
        """Begin anew after a failure in the middle of a step. Steps that wait for an outcome are
        dropped. Requests under way lose their class, as they may end unseen."""
        self._steps.drop_all()
        for queue in (self._sum_queue, self._count_queue, self._classes, self._ended_requests):
            queue.clear()
        self._start = None

    def finish(self) -> None:
        """Write the observation: vLLM ends."""
        self.while_running()
        self._sum()
        if self.observation.num_steps:
            self._write_soon(self.observation, 0.0)

    def _meet(self, name: str, request) -> None:
        """Note a request that begins."""
        self._classes[name] = class_of(request)
        arrivals = self.observation.arrivals
        arrivals.requests += 1
        arrivals.prompt_tokens += request.num_prompt_tokens

    def _count(self, step: Step, tokens: EmittedTokens) -> None:
        """Count the outcomes of a step's drafts. Requests whose output does not count are left
        out."""
        length, invalid = step.draft_length, tokens.invalid
        for name, n in step.verified.items():
            if emitted := tokens.emitted.get(name, 0):
                drafted = max(n - invalid.get(name, 0), 0)
                accepted = min(emitted - 1, drafted)
                self._outcomes[self._classes.get(name, ""), length, drafted, accepted] += 1
        if (without := step.num_decoding - len(step.verified)) > 0:
            self._outcomes["", length, 0, 0] += without

    def _sum(self) -> None:
        finished, self._sum_queue = self._sum_queue, []
        outcomes, self._outcomes = self._outcomes, Counter()
        sizes = [step.size(tokens, self._passes(step)) for step, tokens in finished]
        self.observation.add_steps([step.draft_length for step, _ in finished], sizes)
        self.observation.add_outcomes(
            (DraftOutcome(*key), count) for key, count in outcomes.items()
        )
        self._metrics.observe([each for each in finished if each[0].seconds > 0], None)

    def _passes(self, step: Step) -> int:
        """The passes of a draft model in the measured time. Where drafts end after the step's
        tokens are out (V2 runner), these are the passes for the step itself, else those for the
        next step."""
        if not self._has_passes:
            return 0
        is_later = self._scheduler.use_v2_model_runner
        return max(step.draft_length if is_later else step.output.num_spec_tokens_to_schedule, 1)


def make_observer(scheduler, settings: Settings, files: FileThread) -> Observer:
    """Return the observer of a scheduler, with its file and its metrics."""
    config = scheduler.vllm_config
    setup = describe_setup(scheduler) | {"kv": kv_memory(scheduler)}
    path = observation_path(
        settings.cache, config.instance_id, config.parallel_config.data_parallel_index
    )
    logger.info(
        "SmartSpec observes: vLLM's own draft lengths are used. See `smartspec vllm observed`, %s",
        path,
    )
    file = Handover(path, "what is observed")

    def write(observation: Observation, seconds: float) -> None:
        data = _copy(observation)
        job = partial(file.write, lambda where: write_json(where, data.to_dict()))
        files.post(file, job, seconds)

    return Observer(
        scheduler,
        Observation(setup),
        write,
        make_metrics(config, settings, files),
        has_passes=setup["has_passes"],
        is_adaptive=is_adaptive(config),
    )


def _copy(observation: Observation) -> Observation:
    """Return a copy for a thread: while steps are summed, sums are replaced, and never changed."""
    return replace(
        observation,
        cells=dict(observation.cells),
        outcomes=Counter(observation.outcomes),
        arrivals=replace(observation.arrivals),
    )
