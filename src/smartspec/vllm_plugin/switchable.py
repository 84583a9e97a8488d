"""A scheduler whose speculation can be switched off and on while it runs."""

import logging
from typing import TYPE_CHECKING

from smartspec.vllm_plugin.settings import OBSERVE, Settings
from smartspec.vllm_plugin.windows import WINDOW

if TYPE_CHECKING:
    from smartspec.vllm_plugin.on_off import OnOff

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets

CANNOT = "SmartSpec cannot be switched off, by file or guard, and compares nothing."


def switchable(controlled: type) -> type:
    """A subclass of a scheduler that calls Speculation (scheduler.py): while speculation is off, it does not. If the
    switch itself fails, speculation stays on."""

    class Switchable(controlled):
        on_off: "OnOff | None" = None
        _observes = False

        def begin(self, settings: Settings) -> None:
            super().begin(settings)
            self._observes = settings.policy == OBSERVE
            if self.speculation is None:
                return
            try:
                from smartspec.vllm_plugin.build_on_off import make_on_off

                self.on_off = make_on_off(self, settings, self._leave_speculation)
            except Exception:
                logger.exception(CANNOT)

        def schedule(self, *arguments, **options):
            self._call_on_off("before_schedule")
            return super().schedule(*arguments, **options)

        def _update_after_schedule(self, scheduler_output):
            if self._off_reason == WINDOW:
                super()._call_speculation("note_ended", scheduler_output)
            super()._update_after_schedule(scheduler_output)

        def update_from_output(self, scheduler_output, model_runner_output):
            outputs = super().update_from_output(scheduler_output, model_runner_output)
            self._call_on_off("after_update", scheduler_output, outputs)
            return outputs

        @property
        def _off_reason(self) -> str | None:
            return None if self.on_off is None else self.on_off.reason

        def _leave_speculation(self, is_long: bool) -> None:
            super()._call_speculation("pause")
            if is_long and not self._observes:
                super()._call_speculation("start_over")

        def _call_speculation(self, name: str, *arguments):
            return super()._call_speculation(name, *arguments) if self._off_reason is None else None

        def _call_on_off(self, name: str, *arguments) -> None:
            if self.on_off is None:
                return
            try:
                getattr(self.on_off, name)(*arguments)
            except Exception:
                logger.exception(CANNOT)
                self.on_off.restore()
                self.on_off = None

    return Switchable
