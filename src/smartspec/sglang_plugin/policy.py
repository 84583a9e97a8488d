"""Our decision in SGLang's interface of policies (0.5.23: AdaptiveSpecPolicy in
srt/speculative/adaptive_runtime_state.py)."""

import time
from bisect import bisect_left
from collections.abc import Callable

from smartspec.sglang_plugin.chooser import Chooser
from smartspec.sglang_plugin.timeline import Timeline
from smartspec.vllm_plugin.switch import Switch


class GoodputSteps:
    """own: SGLang's policy. It decides while the switch is off, and for good after an error, of
    which report gets one line."""

    def __init__(
        self,
        own,
        switch: Switch,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._own, self._switch, self._report, self._clock = own, switch, report, clock
        self._chooser = Chooser(tuple(sorted(own.candidate_steps)))
        self._timeline = Timeline()
        self._graph_sizes: list[int] = []
        self._captured: dict[int, list[int] | None] = {}
        self._ahead: tuple = ()  # batch size and choice for the next step
        self._has_failed = False

    def __getattr__(self, name: str):
        """The rest of SGLang's policy, of this version or another."""
        return getattr(self._own, name)

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        self._own.set_cuda_graph_bs(cuda_graph_bs)
        self._graph_sizes = sorted(cuda_graph_bs or ())
        self._captured = {
            step: self._own.cuda_graph_bs_for_step(step=step) for step in self.candidate_steps
        }

    def get_steps_for_batch(self, batch_size: int, *more, **named) -> int:
        """Choose the number of steps, before the launch of a decode step."""
        steps = self._unless_off(self._launch, batch_size)
        return self._own.get_steps_for_batch(batch_size, *more, **named) if steps is None else steps

    def on_verify_complete(
        self, num_correct_drafts_per_req: list[int], batch_size: int, *more, **named
    ) -> int | None:
        """A step is over. SGLang looks for the steps of the next one when it launches it: none are
        named here."""
        if self._unless_off(self._finish, num_correct_drafts_per_req, batch_size) is None:
            return self._own.on_verify_complete(
                num_correct_drafts_per_req, batch_size, *more, **named
            )
        return None

    def end_prefill(self, result) -> None:
        """SGLang is about to wait for this result of prefill."""
        self._unless_off(self._end_prefill, result)

    def tiers(self, batch_size: int) -> tuple[int, ...]:
        """Steps with a captured graph for this batch, which SGLang pads to the next captured size.
        Without graphs all that are prepared; in batches beyond the largest graph those of the
        largest."""
        if not self._graph_sizes or None in self._captured.values():
            return tuple(sorted(self.candidate_steps))
        size = self._graph_sizes[
            min(bisect_left(self._graph_sizes, batch_size), len(self._graph_sizes) - 1)
        ]
        return tuple(sorted(step for step, sizes in self._captured.items() if size in sizes))

    def _launch(self, now: float, batch_size: int) -> int | None:
        is_known = self._ahead and self._ahead[0] == batch_size
        steps, plan = (
            self._ahead[1]
            if is_known
            else self._chooser.choose(batch_size, self.tiers(batch_size), now)
        )
        self._ahead = ()
        chosen = self._own.get_steps_for_batch(batch_size=batch_size) if steps is None else steps
        self._timeline.launch(batch_size, chosen, now, plan)
        return chosen

    def _finish(self, now: float, accepted: list[int], batch_size: int) -> bool | None:
        finished = self._timeline.end(batch_size, now)
        if finished is not None:
            step, seconds = finished
            self._chooser.learn(batch_size, step.steps, step.decision, accepted, seconds)
        # Most batches are as large as the one before. Here the GPU is at work, and no launch waits
        # for the decision.
        self._ahead = (batch_size, self._chooser.choose(batch_size, self.tiers(batch_size), now))
        return None if self._ahead[1][0] is None else True

    def _end_prefill(self, now: float, result) -> None:
        if result.copy_done is not None:
            result.copy_done.synchronize()
            now = self._clock()
        self._timeline.end_prefill(now)

    def _unless_off(self, function: Callable, *arguments):
        """function(now, *arguments); None where SGLang's own policy is to decide."""
        if self._has_failed:
            return None
        try:
            now = self._clock()
            if self._switch.is_off:
                self._timeline, self._ahead = Timeline(), ()
                return None
            return function(now, *arguments)
        except Exception as error:
            self._has_failed = True
            self._report(
                f"SmartSpec failed ({type(error).__name__}: {error}): SGLang's own policy decides "
                "from now on"
            )
            return None
