"""The class to name in `--scheduler-cls`: vLLM's own scheduler, with draft lengths decided by the
controller."""

import logging
from copy import copy
from functools import partial
from typing import TYPE_CHECKING

import vllm

from smartspec.vllm_plugin.ab.windows import WINDOW
from smartspec.vllm_plugin.compatibility import (
    attribute_problem,
    setup_problem,
    signature_problem,
    version_problem,
)
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.handover import remove_old
from smartspec.vllm_plugin.settings import OBSERVE, Settings

if TYPE_CHECKING:
    from smartspec.vllm_plugin.ab.toggle import Toggle
    from smartspec.vllm_plugin.observed.observer import Observer
    from smartspec.vllm_plugin.speculation.speculation import Speculation

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets
FIRST_REST, LONGEST_REST = 100, 12_800  # steps
NO_TOGGLE = "SmartSpec cannot be switched off, by file or guard, and compares nothing."


def Scheduler(vllm_config, *arguments, **options):
    """Return a scheduler for this configuration: vLLM's own, synchronous or asynchronous as vLLM
    chose, with draft lengths decided by the controller. Where that is not possible, vLLM's own as
    it is, after one line with the reason. ValueError on a wrong setting."""
    settings = Settings.read(vllm_config.additional_config)
    scheduler_config = copy(vllm_config.scheduler_config)
    scheduler_config.scheduler_cls = None
    stock = scheduler_config.get_scheduler_cls()
    try:
        problem = (
            version_problem(vllm.__version__)
            or signature_problem(stock)
            or setup_problem(vllm_config)
        )
    except AttributeError as error:
        problem = f"this version of vLLM is another: {error}"
    if problem is not None:
        logger.warning(
            "SmartSpec is not in use: %s. Requests are served by vLLM's own scheduler.", problem
        )
        return stock(vllm_config, *arguments, **options)
    scheduler = controlled_class(stock)(vllm_config, *arguments, **options)
    scheduler.begin(settings)
    return scheduler


class Rest:
    """The steps in which speculation rests after a failure: FIRST_REST, and twice as many after
    each failure that comes soon, up to LONGEST_REST."""

    def __init__(self):
        # steps: those that are left, 0 while speculation works
        self.steps, self._next = 0, FIRST_REST

    def begin(self) -> None:
        self.steps, self._next = self._next, min(2 * self._next, LONGEST_REST)

    def pass_step(self) -> None:
        if self.steps:
            self.steps -= 1
        else:
            self._next = max(self._next - 1, FIRST_REST)


def _make_speculation(scheduler, settings: Settings) -> "Speculation | Observer | None":
    """Return the object that the scheduler calls under these settings. None where this vLLM lacks
    something, after a line that names it: vLLM serves on."""
    is_observing = settings.policy == OBSERVE
    problem = None if is_observing else attribute_problem(scheduler)
    if problem is None:
        try:  # a version that is tried may lack what this imports or reads
            if is_observing:
                from smartspec.vllm_plugin.observed.observer import make_observer as make
            else:
                from smartspec.vllm_plugin.speculation.builder import make_speculation as make
            return make(scheduler, settings, scheduler.files)
        except (ImportError, AttributeError) as error:
            problem = f"this version of vLLM is another: {error}"
    logger.warning("SmartSpec is not in use: %s. Draft lengths are vLLM's own.", problem)
    return None


def _make_toggle(scheduler, settings: Settings) -> "Toggle | None":
    try:
        from smartspec.vllm_plugin.ab.toggle import make_toggle

        return make_toggle(scheduler, settings, scheduler.files)
    except Exception:
        logger.exception(NO_TOGGLE)
        return None


def controlled_class(stock: type) -> type:
    """Return a subclass of one of vLLM's schedulers that calls Speculation, or Observer, unless the
    toggle says off. If that fails, vLLM's own way goes on, and it is called again after a Rest. If
    the toggle fails, speculation stays on."""

    class ControlledScheduler(stock):
        speculation: "Speculation | Observer | None" = None
        toggle: "Toggle | None" = None
        rest: Rest
        files: FileThread  # no method here touches a file

        def begin(self, settings: Settings) -> None:
            """Take over draft lengths."""
            self.rest, self.files = Rest(), FileThread()
            self._is_observing = settings.policy == OBSERVE
            self.files.post("old files", partial(remove_old, settings.cache))
            self.speculation = _make_speculation(self, settings)
            if self.speculation is None:
                return
            if not self._is_observing:
                # With a table vLLM does not pad requests of one token with drafts that do not
                # exist.
                self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.max_num_running_reqs + 1)
            self.toggle = _make_toggle(self, settings)

        def schedule(self, *arguments, **options):
            self._call_toggle("before_schedule")
            self.rest.pass_step()
            self._call_unless_off("before_schedule")
            return super().schedule(*arguments, **options)

        def _update_after_schedule(self, scheduler_output):
            if self.off_reason == WINDOW:
                self._call_speculation("note_ends", scheduler_output)
            self._call_unless_off("after_schedule", scheduler_output)
            super()._update_after_schedule(scheduler_output)

        def get_grammar_bitmask(self, *arguments, **options):
            # vLLM calls this after it has handed a step to the workers, with grammars or without.
            bitmask = super().get_grammar_bitmask(*arguments, **options)
            self._call_unless_off("while_running")
            return bitmask

        def update_from_output(self, scheduler_output, model_runner_output):
            finished = self._call_unless_off("before_update", scheduler_output, model_runner_output)
            outputs = super().update_from_output(scheduler_output, model_runner_output)
            self._call_unless_off("after_update", finished, outputs)
            self._call_toggle("after_update", scheduler_output, outputs)
            return outputs

        def reset_prefix_cache(self, *arguments, **options):
            self._call_speculation("forget_acceptance")  # weights have changed
            return super().reset_prefix_cache(*arguments, **options)

        def shutdown(self) -> None:
            self._call_unless_off("finish")
            if not self.files.wait():
                logger.warning(
                    "SmartSpec's last metrics and results are not written: their folder does not "
                    "answer."
                )
            super().shutdown()

        def leave_speculation(self, is_long: bool) -> None:
            """Stop, before drafts go off. is_long: requests count as new afterwards."""
            # steps without drafts are worth most: they say what no speculation makes
            if self._is_observing:
                return
            self._call_speculation("finish")
            if is_long:
                self._call_speculation("start_over")

        @property
        def off_reason(self) -> str | None:
            """The reason for which there are no drafts, None while there are some."""
            return None if self.toggle is None else self.toggle.reason

        def _call_unless_off(self, name: str, *arguments):
            is_off = self.off_reason is not None and not self._is_observing
            return None if is_off else self._call_speculation(name, *arguments)

        def _call_speculation(self, name: str, *arguments):
            if self.speculation is None or self.rest.steps:
                return None
            try:
                return getattr(self.speculation, name)(*arguments)
            except Exception:
                _rest(self)
                return None

        def _call_toggle(self, name: str, *arguments) -> None:
            if self.toggle is None:
                return
            try:
                getattr(self.toggle, name)(*arguments)
            except Exception:
                logger.exception(NO_TOGGLE)
                self.toggle.restore()
                self.toggle = None

    return ControlledScheduler


def _rest(scheduler) -> None:
    """Let speculation rest after an exception, which is logged."""
    scheduler.rest.begin()
    text = "SmartSpec failed: draft lengths are vLLM's own for %d steps, then it begins anew."
    logger.exception(text, scheduler.rest.steps)
    try:
        scheduler.speculation.start_over()
    except Exception:
        logger.exception(
            "SmartSpec cannot begin anew and is out of use: draft lengths are vLLM's own."
        )
        scheduler.speculation = None
