"""The engine on a controller that fails: it serves on without drafts, says so once, and comes
back."""

import pytest
from fakes import RandomController, make_core, make_request, serve

from smartspec.control import SafeController
from smartspec.control.planning import no_drafts
from smartspec.control.safe_controller import MAX_KINDS

RETRY_STEPS = 5


class FailingController(RandomController):
    """Raises in the methods named in failing, every time they are called; calls: all that were
    called."""

    def __init__(self, *failing: str, text: str = "no such estimate"):
        super().__init__()
        self.failing = set(failing)
        self.calls: list[str] = []
        self.text = text

    def plan(self, view):
        self._begin("plan")
        return super().plan(view)

    def cut(self, plan, drafted):
        self._begin("cut")
        return super().cut(plan, drafted)

    def learn(self, plan, outcome):
        self._begin("learn")
        super().learn(plan, outcome)

    def end(self, request_id):
        self._begin("end")
        super().end(request_id)

    def state(self) -> dict:
        self._begin("state")
        return {"policy": "random"}

    def _begin(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise KeyError(self.text)


def three_requests(max_tokens: int = 30) -> list:
    prompts = enumerate([[1, 2, 3], [4, 5], [6]])
    return [make_request(number, prompt, max_tokens) for number, prompt in prompts]


@pytest.mark.parametrize("method", ["plan", "cut", "learn", "end"])
def test_the_engine_serves_on_and_says_so_once(method):
    reports = []
    controller = FailingController(method)
    safe = SafeController(controller, reports.append, RETRY_STEPS)
    outputs = serve(make_core(safe), three_requests())
    assert safe.num_errors > 1
    assert set(safe.errors) == {"KeyError: 'no such estimate'"}
    assert len(reports) == 1 and "no such estimate" in reports[0] and str(RETRY_STEPS) in reports[0]
    if method in ("plan", "cut"):
        assert all(output.num_verified_tokens == 0 for output in outputs)
    assert safe.state()["controller_errors"] == dict(safe.errors)
    assert safe.state()["policy"] == "random"


def test_the_bare_controller_ends_the_step():
    with pytest.raises(KeyError, match="no such estimate"):
        serve(make_core(FailingController("plan")), three_requests())


def test_it_is_called_again_after_the_pause_and_speculation_comes_back():
    controller = FailingController("plan")
    safe = SafeController(controller, lambda text: None, RETRY_STEPS)
    core = make_core(safe)
    core.add_request(make_request(9, [1, 2], max_tokens=60))
    for step in range(RETRY_STEPS):
        core.step(float(step))
    assert controller.calls.count("plan") == 1 and "learn" not in controller.calls
    controller.failing.clear()
    verified = 0
    while core.has_work:
        verified += core.step(0.0).num_verified_tokens
    assert verified > 0 and safe.num_errors == 1
    assert controller.calls.count("plan") > 1 and "learn" in controller.calls


def test_ended_requests_are_forgotten_during_a_pause():
    controller = FailingController("plan")
    safe = SafeController(controller, lambda text: None, retry_steps=1000)
    serve(make_core(safe), three_requests(max_tokens=5))
    assert sorted(controller.forgotten) == [0, 1, 2]


def test_state_and_predicted_seconds_survive_a_failure():
    controller = FailingController("state")
    safe = SafeController(controller, lambda text: None, RETRY_STEPS)
    assert safe.predicted_seconds == 1.0
    assert safe.state()["controller_errors"] == {"KeyError: 'no such estimate'": 1}
    controller.failing = {"learn"}
    safe.learn(no_drafts(0), None)
    assert safe.predicted_seconds is None


def test_kinds_are_bounded():
    reports = []
    safe = SafeController(FailingController("end"), reports.append)
    for number in range(10 * MAX_KINDS):
        safe.controller.text = f"request {number}"
        safe.end(number)
    assert len(safe.errors) == MAX_KINDS + 1 == len(reports)
    assert safe.num_errors == 10 * MAX_KINDS and safe.errors["other"] == 9 * MAX_KINDS
