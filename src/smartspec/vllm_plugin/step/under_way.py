"""The steps that vLLM has scheduled and not finished, and the time that each takes."""

from collections.abc import Callable

from smartspec.vllm_plugin.step.adaptive import verified_by_request
from smartspec.vllm_plugin.step.batch import NO_PREFILL, Prefill
from smartspec.vllm_plugin.step.decision import Decision, EmittedTokens, Step

MOST = 16  # that wait for their outcome; vLLM has two at a time


class StepsUnderWay:
    """Such steps of one scheduler, in their order. is_adaptive: vLLM's workers choose the drafts
    that they verify. on_drop: called with a step whose outcome never comes."""

    def __init__(
        self,
        scheduler,
        is_adaptive: bool,
        clock: Callable[[], float],
        on_drop: Callable[[Step], None] = lambda step: None,
    ):
        self._scheduler, self._is_adaptive = scheduler, is_adaptive
        self._clock, self._on_drop = clock, on_drop
        self._steps: dict[int, Step] = {}  # by identity of vLLM's output
        self._last_completion: float | None = None  # None while vLLM waits for requests

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def newest(self) -> Step | None:
        return next(reversed(self._steps.values()), None)

    def add(
        self,
        output,
        draft_length: int,
        decision: Decision | None = None,
        ended_requests: tuple[str, ...] = (),
    ) -> Step:
        """Note a step, before vLLM counts its tokens as computed. The rest: see Step."""
        requests, scheduled = self._scheduler.requests, output.num_scheduled_tokens
        drafts = output.scheduled_spec_decode_tokens
        verified = dict(zip(drafts, map(len, drafts.values()), strict=True))
        num_verified, prefill = sum(verified.values()), NO_PREFILL
        if output.total_num_scheduled_tokens - num_verified != len(scheduled):
            fed = {name: n - verified.get(name, 0) for name, n in scheduled.items()}
            prefill = Prefill.of(
                [(requests[name].num_computed_tokens, n) for name, n in fed.items() if n > 1]
            )
        step = Step(
            output=output,
            start=self._clock(),
            prefill=prefill,
            verified=verified,
            num_verified=num_verified,
            num_decoding=len(scheduled) - prefill.num_prefills,
            context_tokens=sum([requests[name].num_computed_tokens for name in scheduled]),
            draft_length=draft_length,
            decision=decision,
            ended_requests=ended_requests,
        )
        self._steps[id(output)] = step
        if len(self._steps) > MOST:
            self._drop_oldest()
        return step

    def finish(self, output, model_output) -> tuple[Step, EmittedTokens] | None:
        """Return a finished step and its tokens, None for a step that fed nothing."""
        if id(output) not in self._steps:
            return None
        while next(iter(self._steps)) != id(output):  # vLLM finishes steps in order
            self._drop_oldest()
        step = self._steps.pop(id(output))
        now = self._clock()
        start = step.start if self._last_completion is None else self._last_completion
        step.seconds, self._last_completion = now - start, now
        # else the decision was made before these seconds
        if step.decision is not None and start < step.start:
            step.host_seconds = min(step.decision.host_seconds, max(step.seconds, 0.0))
        if self._is_adaptive and step.verified:
            step.verified = verified_by_request(model_output, step.verified)
            step.num_verified = sum(step.verified.values())
        return step, EmittedTokens.of(step, model_output, self._scheduler.requests)

    def pause(self) -> None:
        """Note that vLLM waits for requests: the time until the next step is no step's."""
        self._last_completion = None

    def drop_all(self) -> None:
        while self._steps:
            self._drop_oldest()
        self.pause()

    def _drop_oldest(self) -> None:
        self._on_drop(self._steps.pop(next(iter(self._steps))))
