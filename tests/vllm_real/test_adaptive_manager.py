"""Our part in vLLM's workers, with vLLM's own AdaptiveVerificationManager: its arithmetic runs on a
CPU."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from smartspec.vllm_plugin import executor
from smartspec.vllm_plugin.step.adaptive import ADMITTED, CostCurves

module = pytest.importorskip("vllm.v1.worker.gpu.spec_decode.adaptive_verification")

MAX_REQUESTS, STEPS = 8, 3


class Group:
    """Tensor parallelism of one rank. sent: what it told the other ranks."""

    def __init__(self):
        self.sent = []

    def broadcast_object(self, value, src):
        self.sent.append(value)
        return value


class Runner:
    """As far as ours needs vLLM's V2 runner. output: of the step, synchronous or not."""

    def __init__(self, manager, is_async):
        self.adaptive_verification, self._is_async = manager, is_async

    def sample_tokens(self, grammar_output):
        result = SimpleNamespace()
        return SimpleNamespace(get_output=lambda: result) if self._is_async else result


@pytest.fixture
def group(monkeypatch):
    group = Group()
    nothing = SimpleNamespace(
        synchronize=lambda: None, record=lambda: None, wait_stream=lambda other: None
    )
    monkeypatch.setattr(torch.cuda, "Stream", lambda *arguments, **options: nothing)
    monkeypatch.setattr(torch.cuda, "Event", lambda *arguments, **options: nothing)
    monkeypatch.setattr(module, "get_tp_group", lambda: group)
    monkeypatch.setattr(
        module, "async_tensor_h2d", lambda array, out: out.copy_(torch.as_tensor(array))
    )
    monkeypatch.setattr(
        module, "_assign_draft_token_budget_compiled", module._assign_draft_token_budget
    )
    monkeypatch.setattr(module, "CpuGpuBuffer", HostBuffer)
    return group


class HostBuffer:
    """vLLM's pair of a tensor on the host and one on the device, which is the host's."""

    def __init__(self, *shape, dtype, device):
        self.gpu = self.cpu = torch.zeros(shape, dtype=dtype)
        self.np = self.cpu.numpy()


def make_manager():
    states = SimpleNamespace(
        num_speculative_steps=STEPS,
        device=torch.device("cpu"),
        max_num_reqs=MAX_REQUESTS,
        max_num_batched_tokens=64,
        req_id_to_index={str(number): number for number in range(MAX_REQUESTS)},
        num_computed_tokens_np=np.full(MAX_REQUESTS, 100),
        prefill_len=SimpleNamespace(np=np.full(MAX_REQUESTS, 50)),
    )
    start = torch.zeros(MAX_REQUESTS + 1, dtype=torch.int32)
    return module.AdaptiveVerificationManager(
        states, start, num_bonus_tokens=1, max_total_logits=1024
    )


def curves(per_token: float) -> CostCurves:
    """6 ms a pass and so many ms a token."""
    sizes = (1, 2, 4, 8, 16, 32, 64)
    return CostCurves(
        draft=((1, 0.5), (8, 0.5)), verify=tuple((size, 6.0 + per_token * size) for size in sizes)
    )


def step(runner, confidences: list[list[float]]):
    """One step of three requests with three drafts each: tokens it feeds, and what its output
    says."""
    manager = runner.adaptive_verification
    names = [str(number) for number in range(len(confidences))]
    manager._stale_confidences[manager._stale_idx].np[: len(names)] = confidences
    manager._confidence_probs[: len(names)] = torch.tensor(confidences)
    num_tokens = manager.get_num_tokens(
        dict.fromkeys(names, 1 + STEPS), dict.fromkeys(names, [-1] * STEPS)
    )
    manager.reallocate_drafts(names, torch.arange(len(names)))
    return num_tokens, runner.sample_tokens(None)


@pytest.mark.parametrize("is_async", [False, True])
def test_it_tells_what_the_manager_admitted_by_our_costs(group, is_async):
    runner = Runner(make_manager(), is_async)
    worker = SimpleNamespace(model_runner=runner)
    assert executor.tell_admitted(worker) is None
    confidences = [[0.9, 0.9, 0.9], [0.1, 0.1, 0.1], [0.6, 0.5, 0.4]]

    executor.take_costs(worker, curves(per_token=0.0))
    num_tokens, output = step(runner, confidences)
    assert num_tokens == 12 and admitted(output) == [3, 3, 3], (
        "tokens that cost nothing are all verified"
    )

    executor.take_costs(worker, curves(per_token=1.2))
    num_tokens, output = step(runner, confidences)
    assert num_tokens == 8 and admitted(output) == [3, 0, 2], (
        "dear ones only up to the size that is paid in any case"
    )
    assert len(group.sent) == 2, "all ranks get the numbers of the first"


def admitted(output) -> list[int]:
    complete = output.get_output() if hasattr(output, "get_output") else output
    return getattr(complete, ADMITTED)


def test_a_step_without_drafts_tells_nothing(group):
    runner = Runner(make_manager(), is_async=False)
    assert executor.tell_admitted(SimpleNamespace(model_runner=runner)) is None
    assert not hasattr(runner.sample_tokens(None), ADMITTED)


@pytest.mark.parametrize("name", ["reallocate_drafts", "set_cost_curves", "get_num_tokens"])
def test_a_changed_method_of_vllm_leaves_it_as_it_is(group, name, monkeypatch):
    monkeypatch.setattr(module.AdaptiveVerificationManager, name, lambda self, other: None)
    runner = Runner(make_manager(), is_async=False)
    problem = executor.tell_admitted(SimpleNamespace(model_runner=runner))
    assert f"AdaptiveVerificationManager.{name} takes self, other in" in str(problem)
    assert "sample_tokens" not in vars(runner)


def test_without_counts_or_a_manager_it_says_so(group):
    assert "no adaptive verification" in executor.tell_admitted(
        SimpleNamespace(model_runner=SimpleNamespace(adaptive_verification=None))
    )
    manager = make_manager()
    del manager._batch_draft_capacity
    worker = SimpleNamespace(model_runner=Runner(manager, is_async=False))
    assert "has no _batch_draft_capacity" in executor.tell_admitted(worker)
