"""Which steps are chosen, and when SGLang's own policy chooses them."""

from types import SimpleNamespace

import numpy as np
import pytest
from fake_sglang import Clock, OwnPolicy, drive

from smartspec.sglang_plugin.policy import GoodputSteps
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.switch import Switch

SLOTS = {1: [0, 1, 3, 5]}


def weight_bound(batch_size: int, steps: int) -> float:
    """A GPU on which tokens cost little, and draft passes something."""
    return 0.010 + 0.0005 * steps


def compute_bound(batch_size: int, steps: int) -> float:
    return 0.002 + 0.0005 * batch_size * (1 + steps)


def make(tmp_path, slots=SLOTS, graphs=(1, 2, 4, 8, 16)):
    own, clock, lines = OwnPolicy(slots), Clock(), []
    policy = GoodputSteps(own, Switch(tmp_path / "off", FileThread()), lines.append, clock)
    policy.set_cuda_graph_bs(list(graphs) or None)
    return policy, own, clock, lines


def leading(probability: float, rows: int):
    """Accepted tokens by request, where each token is right with this probability."""
    rng = np.random.default_rng(0)

    def accepted(steps: int) -> list[int]:
        return np.minimum(rng.geometric(1 - probability, rows) - 1, steps).tolist()

    return accepted


@pytest.mark.parametrize(
    ("probability", "seconds", "least", "most"),
    [
        (0.95, weight_bound, 4.5, 5.0),
        (0.02, weight_bound, 0.0, 0.4),
        (0.6, compute_bound, 0.0, 0.4),
    ],
)
def test_steps_follow_acceptance_and_time(tmp_path, probability, seconds, least, most):
    policy, _, clock, lines = make(tmp_path)
    chosen = drive(policy, clock, 8, 600, seconds, leading(probability, 8))
    assert set(chosen[:40]) == {0, 1, 3, 5}  # each is tried first
    assert least <= np.mean(chosen[300:]) <= most
    assert not lines


def test_steps_come_back_when_acceptance_does(tmp_path):
    policy, _, clock, _ = make(tmp_path)
    drive(policy, clock, 4, 400, weight_bound, leading(0.0, 4))
    chosen = drive(policy, clock, 4, 1500, weight_bound, leading(0.95, 4))
    assert np.mean(chosen[-200:]) > 4


def test_only_captured_steps_are_chosen(tmp_path):
    slots = {1: [1, 3, 5], 3: [0, 1], 16: [0]}
    policy, _, clock, _ = make(tmp_path, slots)
    assert [policy.tiers(size) for size in (1, 2, 3, 4, 9, 16, 99)] == [
        (1, 3, 5), (1, 3, 5), (0, 1), (0, 1), (0,), (0,), (0,),
    ]  # fmt: skip
    for size, allowed in ((1, {1, 3, 5}), (4, {0, 1}), (16, {0}), (99, {0})):
        assert set(drive(policy, clock, size, 200, weight_bound, leading(0.5, size))) <= allowed


def test_without_graphs_all_prepared_steps_may_be_chosen(tmp_path):
    policy, _, _, _ = make(tmp_path, {1: [1, 3], 8: [0]}, graphs=())
    assert policy.tiers(1) == policy.tiers(64) == (0, 1, 3)


def test_switched_off_sglang_decides_and_learns(tmp_path):
    policy, own, clock, lines = make(tmp_path)
    drive(policy, clock, 2, 100, weight_bound, leading(0.0, 2))
    assert not own.verified
    (tmp_path / "off").touch()
    policy._switch._look()
    assert drive(policy, clock, 2, 50, weight_bound, leading(0.0, 2)) == [5] * 50
    assert len(own.verified) == 50
    assert policy.on_verify_complete([0, 0], 2) == 5  # which SGLang then switches to
    (tmp_path / "off").unlink()
    policy._switch._look()
    chosen = drive(policy, clock, 2, 100, weight_bound, leading(0.0, 2))
    assert np.mean(chosen) < 1 and not lines


def test_after_an_error_sglang_decides_for_good(tmp_path):
    policy, _, clock, lines = make(tmp_path)
    drive(policy, clock, 2, 100, weight_bound, leading(0.5, 2))
    policy.on_verify_complete(["x", 1], 2)  # no outcome is learned in most steps
    for _ in range(20):
        policy.get_steps_for_batch(2)
        policy.on_verify_complete(["x", 1], 2)
    assert drive(policy, clock, 2, 50, weight_bound, leading(0.5, 2)) == [5] * 50
    assert len(lines) == 1 and "ValueError" in lines[0] and "SGLang's own policy" in lines[0]
    assert policy.on_verify_complete([1, 1], 2) == 5


def test_while_times_cannot_be_known_sglang_decides(tmp_path):
    policy, _, clock, _ = make(tmp_path)
    chosen = []
    for _ in range(600):  # the batch that ends is never the one that was launched
        chosen.append(policy.get_steps_for_batch(2))
        clock.now += 0.01
        policy.on_verify_complete([0] * 3, 3)
    assert set(chosen[-100:]) == {5}


def test_a_result_of_prefill_is_waited_for(tmp_path):
    policy, _, clock, lines = make(tmp_path)

    done = SimpleNamespace(synchronize=lambda: setattr(clock, "now", 3.0))
    policy.end_prefill(SimpleNamespace(copy_done=done))
    assert clock.now == 3.0 and not lines
    policy.end_prefill(None)  # not SGLang's any more
    assert len(lines) == 1
