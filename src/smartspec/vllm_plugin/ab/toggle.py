"""Speculation of one scheduler, off or on: by an operator's switch, by windows of `--act`, and by
the guard.

Off is vLLM's own length 0, as if its table of batch sizes said so: `dynamic_sd_lookup` of 0, and no
drafts in requests. Drafts that vLLM makes all the same (its ngram on CPUs, suffix, medusa; a block;
all where ranks run in lockstep) are dropped.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from random import Random

from smartspec.vllm_plugin.ab.comparison import LEAST_RATIO, Guard, Pair, compare
from smartspec.vllm_plugin.ab.metrics import ToggleMetrics, toggle_metrics_path
from smartspec.vllm_plugin.ab.results import ALL, Results, level_name
from smartspec.vllm_plugin.ab.windows import WINDOW, Meter, Windows
from smartspec.vllm_plugin.compatibility import has_fixed_drafts
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.settings import OBSERVE, Settings
from smartspec.vllm_plugin.setup import AUTOMATIC, MODEL_FREE
from smartspec.vllm_plugin.step.decision import tokens_given
from smartspec.vllm_plugin.switch import SWITCH, Switch, switch_path

logger = logging.getLogger("vllm.smartspec")

DROPPING_STEPS = 16  # then no drafts are left, where workers make none; two steps are under way


class Toggle:
    """The state of speculation in one scheduler. reason: None while it is on, else the reason for
    which it is off. make_windows: makes the windows to measure, None for none."""

    def __init__(
        self,
        scheduler,
        switch: Switch,
        metrics: ToggleMetrics,
        make_windows: Callable[[], Windows] | None,
    ):
        self.reason: str | None = None
        self._scheduler, self._switch, self._metrics = scheduler, switch, metrics
        self._make_windows, self._clock = make_windows, time.monotonic
        self._lookup = scheduler.dynamic_sd_lookup  # while speculation is on
        plain_length = _plain_length(scheduler.vllm_config)
        self._plain = [plain_length] * (scheduler.max_num_running_reqs + 1)
        self._steps_to_drop = 0
        self._windows: Windows | None = None
        self._meter = Meter()
        metrics.set_reason(None)

    def before_schedule(self) -> None:
        """Read the switch, end windows that are over, and drop drafts while speculation is off."""
        if self._switch.is_off:
            self._windows = self._meter.window = None
            self._set(SWITCH)
        else:
            if self.reason == SWITCH:
                self._set(None)
            if self._make_windows is not None:
                self._measure()
        if self.reason is not None and (self._plain[0] or self._steps_to_drop):
            self._steps_to_drop -= 1
            for request in self._scheduler.running:
                if request.spec_token_ids:
                    request.spec_token_ids = []

    def after_update(self, scheduler_output, outputs) -> None:
        """Measure a step that is over. outputs: those that vLLM sends to its front end, by
        client."""
        if not self._meter.is_measuring or not scheduler_output.total_num_scheduled_tokens:
            return
        self._meter.finish_step(
            self._clock(),
            tokens_given(outputs),
            len(scheduler_output.num_scheduled_tokens),
            is_idle=not self._scheduler.has_unfinished_requests(),
        )

    def restore(self) -> None:
        """Give draft lengths back as they were, for good."""
        self._scheduler.dynamic_sd_lookup, self.reason = self._lookup, None

    def _measure(self) -> None:
        """End windows that are over, and begin those that follow."""
        meter, now = self._meter, self._clock()
        if self._windows is None:
            # the first steps try lengths: they say nothing of SmartSpec
            speculation = self._scheduler.speculation
            if speculation is None or speculation.learner.controller is None:
                return
            self._windows = self._make_windows()
            meter.begin(next(self._windows), now)
            self._set(meter.window.part.reason)
        elif meter.window.is_over(now):
            meter.begin(self._windows.send(meter.end(now)), now)
            self._set(meter.window.part.reason)
        if meter.is_measuring:
            meter.begin_step(now)

    def _set(self, reason: str | None) -> None:
        if reason == self.reason:
            return
        if reason is not None:
            self._scheduler.leave_speculation(reason != WINDOW)
        self.reason, self._steps_to_drop = reason, DROPPING_STEPS
        self._scheduler.dynamic_sd_lookup = self._lookup if reason is None else self._plain
        self._metrics.set_reason(reason)


def compare_for(results: Results, metrics: ToggleMetrics, guard: Guard | None) -> Windows:
    """Return the windows of `--act`. Their results are added to the others, go to metrics, and as a
    line a minute to the log."""
    random = Random()

    def add(pair: Pair) -> None:
        results.add(pair)
        levels = results.levels
        metrics.set_results(levels, results.since)
        level = levels[ALL]
        interval = "too few for an interval"
        if level.interval is not None:
            interval = "95 %: {:.3f} to {:.3f}".format(*level.interval)
        logger.info(
            "A/B: SmartSpec has %.3f times the speed of no speculation (%d pairs of windows, %s). "
            "The last pair: %.1f against %.1f tokens per second and request, %s or more at a time.",
            level.ratio, level.pairs, interval, pair.on.speed, pair.off.speed,
            level_name(pair.off.requests),
        )  # fmt: skip

    return compare(add, guard, lambda: random.random() < 0.5)


def make_guard(least_ratio: float, metrics: ToggleMetrics) -> Guard:
    """Return a guard that shows in the log and in metrics what it does."""

    def rest(ratio: float, requests: float, seconds: float) -> None:
        metrics.count_guard()
        logger.warning(
            "Speculation is off: in 30 s it had %.3f of the speed of no speculation (limit %g), at "
            "%.0f requests at a time. It is tried again in %.0f minutes.",
            ratio, least_ratio, requests, seconds / 60,
        )  # fmt: skip

    return Guard(least_ratio, metrics.set_ratio, rest)


def make_toggle(scheduler, settings: Settings, files: FileThread) -> Toggle:
    """Return the toggle of a scheduler of vLLM. Where it only observes, the operator's switch alone
    counts."""
    config = scheduler.vllm_config
    engine_index = config.parallel_config.data_parallel_index
    metrics = ToggleMetrics(
        toggle_metrics_path(settings.cache, config.instance_id, engine_index), engine_index, files
    )
    least_ratio = settings.guard if settings.policy != OBSERVE else 0.0
    if least_ratio is None:  # a length that a person chose is not overruled
        least_ratio = LEAST_RATIO if settings.policy == AUTOMATIC else 0.0
    guard = make_guard(least_ratio, metrics) if least_ratio else None
    make_windows = guard.watch if guard else None
    if settings.act:
        make_windows = partial(compare_for, Results(), metrics, guard)
    switch = Switch(switch_path(settings.cache), files, metrics.set_switch)
    metrics.set_switch(switch.is_off)
    logger.info(
        "Speculation is off while %s exists (`smartspec vllm off` and `on`, or touch and rm).",
        switch.path,
    )
    return Toggle(scheduler, switch, metrics, make_windows)


def _plain_length(vllm_config) -> int:
    """The draft tokens that workers make while speculation is off: none, where they honour that."""
    speculation = vllm_config.speculative_config
    is_honoured = vllm_config.use_v2_model_runner or speculation.method not in MODEL_FREE
    if is_honoured and not has_fixed_drafts(vllm_config):
        return 0
    return speculation.num_speculative_tokens
