"""The engine on a controller that fails: it serves on without drafts, says so once, and comes
back."""

import pytest
from fakes import FakeExecutor, RandomController, continuation

from smartspec.control import SafeController
from smartspec.control.planning import no_drafts
from smartspec.control.safe_controller import MAX_KINDS
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.scheduler import Scheduler

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


def make_core(controller) -> EngineCore:
    scheduler = Scheduler(
        BlockManager(40, 4, 4), max_batched_tokens=16, max_model_len=100, max_draft_tokens=5
    )
    return EngineCore(scheduler, FakeExecutor(4), controller)


def add_and_run(core: EngineCore, max_tokens: int = 30) -> list:
    """Serve three requests, check their output, and return the step outputs."""
    prompts = [[1, 2, 3], [4, 5], [6]]
    requests = [
        Request(
            i, prompt, SamplingParams(max_tokens=max_tokens), seed=0, stop_token_ids=frozenset()
        )
        for i, prompt in enumerate(prompts)
    ]
    for request in requests:
        core.add_request(request)
    outputs, now = [], 0.0
    while core.has_work:
        outputs.append(core.step(now))
        now += 1.0
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.output_token_ids.tolist() == continuation(prompt, max_tokens)
    return outputs


@pytest.mark.parametrize("method", ["plan", "cut", "learn", "end"])
def test_the_engine_serves_on_and_says_so_once(method):
    reports = []
    controller = FailingController(method)
    safe = SafeController(controller, reports.append, RETRY_STEPS)
    outputs = add_and_run(make_core(safe))
    assert safe.num_errors > 1
    assert set(safe.errors) == {"KeyError: 'no such estimate'"}
    assert len(reports) == 1 and "no such estimate" in reports[0] and str(RETRY_STEPS) in reports[0]
    if method in ("plan", "cut"):
        assert all(output.num_verified_tokens == 0 for output in outputs)
    assert safe.state()["controller_errors"] == dict(safe.errors)
    assert safe.state()["policy"] == "random"


def test_the_bare_controller_ends_the_step():
    with pytest.raises(KeyError, match="no such estimate"):
        add_and_run(make_core(FailingController("plan")))


def test_it_is_called_again_after_the_pause_and_speculation_comes_back():
    controller = FailingController("plan")
    safe = SafeController(controller, lambda text: None, RETRY_STEPS)
    core = make_core(safe)
    request = Request(9, [1, 2], SamplingParams(max_tokens=60), seed=0, stop_token_ids=frozenset())
    core.add_request(request)
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
    add_and_run(
        make_core(SafeController(controller, lambda text: None, retry_steps=1000)), max_tokens=5
    )
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
