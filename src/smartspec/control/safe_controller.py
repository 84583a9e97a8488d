"""A controller whose failures do not stop the engine: it keeps serving, without drafts.

For production. Tests and strict use give EngineCore the bare controller, where an exception ends
the step.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np

from smartspec.control.controller import Controller
from smartspec.control.latency.model import LatencyModel
from smartspec.control.planning import no_drafts
from smartspec.control.records import BatchView, Drafted, Outcome, Plan

RETRY_STEPS = 100
# texts of exceptions may hold numbers: beyond this many kinds they are counted together
MAX_KINDS = 32


class SafeController:
    """Calls controller. If that raises, speculation is off for retry_steps steps; then it is called
    again.

    report: called with one line for every new kind of failure (type and text of the exception).
    """

    def __init__(
        self, controller: Controller, report: Callable[[str], None], retry_steps: int = RETRY_STEPS
    ):
        self.controller = controller
        self.errors: Counter[str] = Counter()  # the number of failures of each kind
        self.num_errors = 0  # of all kinds; another thread may read it
        self._report = report
        self._retry_steps = retry_steps
        self._steps_to_retry = 0

    @property
    def predicted_seconds(self) -> float | None:
        """The controller's prediction; None while it is not called."""
        return self._call(None, getattr, self.controller, "predicted_seconds")

    @property
    def num_ignored(self) -> Counter[str]:
        """The number of inputs of the controller that cannot be true, by kind."""
        return self.controller.num_ignored

    def plan(self, view: BatchView) -> Plan:
        """Return the controller's plan, or no drafts."""
        if self._steps_to_retry:
            self._steps_to_retry -= 1
        return self._call(no_drafts(view.num_rows), self.controller.plan, view)

    def cut(self, plan: Plan, drafted: Drafted) -> np.ndarray:
        """Return the controller's lengths, or zeros: int [R]."""
        return self._call(np.zeros_like(drafted.lengths), self.controller.cut, plan, drafted)

    def learn(self, plan: Plan, outcome: Outcome) -> None:
        """Pass on the outcome, unless the controller failed in this step or in the last
        retry_steps."""
        self._call(None, self.controller.learn, plan, outcome)

    def use_latency(self, latency: LatencyModel) -> None:
        """Pass on the new profile."""
        self._call(None, self.controller.use_latency, latency)

    def forget_acceptance(self) -> None:
        """Pass it on: the target's weights have changed."""
        self._call(None, self.controller.forget_acceptance)

    def end(self, request_id: int) -> None:
        """Pass on the end of a request, always: a controller that recovers would else remember
        requests forever."""
        self._try(None, self.controller.end, request_id)

    def state(self) -> dict:
        """Return the controller's state, with its failures."""
        return self._try({}, self.controller.state) | {
            "controller_errors": dict(self.errors),
            "steps_to_retry": self._steps_to_retry,
        }

    def explain(self) -> dict | None:
        """Return the controller's explanation, or None when it fails."""
        return self._try(None, self.controller.explain)

    def _call(self, fallback, function: Callable, *arguments):
        """Return function(*arguments), or fallback when it raises or speculation is off after a
        failure."""
        if self._steps_to_retry:
            return fallback
        num_errors = self.num_errors
        result = self._try(fallback, function, *arguments)
        if self.num_errors > num_errors:
            self._steps_to_retry = self._retry_steps
        return result

    def _try(self, fallback, function: Callable, *arguments):
        """Return function(*arguments), or fallback when it raises."""
        try:
            return function(*arguments)
        except Exception as error:
            self._note(error)
            return fallback

    def _note(self, error: Exception) -> None:
        kind = f"{type(error).__name__}: {error}"
        if kind not in self.errors and len(self.errors) >= MAX_KINDS:
            kind = "other"
        if kind not in self.errors:
            self._report(
                f"the controller failed ({kind}): serving without drafts, next try in "
                f"{self._retry_steps} steps"
            )
        self.errors[kind] += 1
        self.num_errors += 1
