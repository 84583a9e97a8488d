"""A controller that may fail: the engine keeps serving, without drafts, whatever goes wrong in it.

For production. Tests and strict use give EngineCore the bare controller, where an exception ends the step.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np

from smartspec.control.controller import Controller, Planned
from smartspec.control.policy import no_drafts
from smartspec.control.records import Asked, BatchView, Drafted, DraftPlan, StepFeedback

RETRY_STEPS = 100
MAX_KINDS = 32  # texts of exceptions may hold numbers: beyond this many kinds they are counted together


class SafeController:
    """Asks controller; if that raises, speculation is off for retry_steps steps, and then it is asked again.

    report: called with one line for every new kind of failure (type and text of the exception). errors: how often each
    kind occurred; num_errors: all of them (another thread may read it).
    """

    def __init__(self, controller: Controller, report: Callable[[str], None], retry_steps: int = RETRY_STEPS):
        self.controller = controller
        self.errors: Counter[str] = Counter()
        self.num_errors = 0
        self._report = report
        self._retry_steps = retry_steps
        self._steps_to_retry = 0

    @property
    def predicted_seconds(self) -> float:
        """As the controller says, 0 while it is not asked."""
        return self._ask(0.0, lambda: self.controller.predicted_seconds)

    @property
    def num_ignored(self) -> Counter[str]:
        """What the controller was told that cannot be true, by kind."""
        return self.controller.num_ignored

    def asks_drafters(self, num_rows: int) -> Asked:
        """As the controller says; nobody while it is not asked itself."""
        return self._ask(Asked.NOBODY, self.controller.asks_drafters, num_rows)

    def plan_draft(self, view: BatchView) -> DraftPlan:
        """The controller's plan, or no drafts."""
        if self._steps_to_retry:
            self._steps_to_retry -= 1
        return self._ask(no_drafts(view.num_rows), self.controller.plan_draft, view)

    def plan_verify(self, view: BatchView, plan: DraftPlan, drafted: Drafted) -> np.ndarray:
        """The controller's lengths, or none verified: int [R]."""
        return self._ask(np.zeros(view.num_rows, dtype=np.int64), self.controller.plan_verify, view, plan, drafted)

    @property
    def planned(self) -> Planned | None:
        """The last step, as the controller planned it (see its observe); None while it is not asked."""
        return None if self._steps_to_retry else self.controller.planned

    def observe(self, feedback: StepFeedback, planned: Planned | None = None) -> None:
        """Passed on, unless the controller failed in this step or not long ago."""
        self._ask(None, self.controller.observe, feedback, planned)

    def forget(self, request_id: int) -> None:
        """Always passed on, or a controller that recovers would remember requests forever."""
        try:
            self.controller.forget(request_id)
        except Exception as error:
            self._note(error)

    def state(self) -> dict:
        """The controller's, with its failures."""
        try:
            state = self.controller.state()
        except Exception as error:
            self._note(error)
            state = {}
        return state | {"controller_errors": dict(self.errors), "steps_to_retry": self._steps_to_retry}

    def explain(self) -> dict | None:
        """The controller's, or None when it fails."""
        try:
            return self.controller.explain()
        except Exception as error:
            self._note(error)
            return None

    def _ask(self, fallback, function: Callable, *arguments):
        """function(*arguments), or fallback when it raises or the controller is not being asked."""
        if self._steps_to_retry:
            return fallback
        try:
            return function(*arguments)
        except Exception as error:
            self._steps_to_retry = self._retry_steps
            self._note(error)
            return fallback

    def _note(self, error: Exception) -> None:
        kind = f"{type(error).__name__}: {error}"
        if kind not in self.errors and len(self.errors) >= MAX_KINDS:
            kind = "other"
        if kind not in self.errors:
            self._report(
                f"the controller failed ({kind}): serving without drafts, next try in {self._retry_steps} steps"
            )
        self.errors[kind] += 1
        self.num_errors += 1
