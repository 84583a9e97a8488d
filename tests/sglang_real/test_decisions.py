"""Our policy in SGLang's real controller, on an emulated GPU."""

from pathlib import Path

import numpy as np
import pytest
from lib.emulated_gpu.sglang_loop import GRAPH_SIZES, VirtualClock, Worker
from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController
from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams
from sglang_steps import Scene, make_worker, measure

from smartspec.sglang_plugin.policy import GoodputSteps
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.switch import Switch


def controllers(
    tmp_path: Path,
) -> tuple[AdaptiveController, AdaptiveController, list[str], VirtualClock]:
    """Ours around SGLang's policy, and SGLang's alone."""
    lines, clock = [], VirtualClock()
    ours = GoodputSteps(
        AdaptiveSpeculativeParams(3), Switch(tmp_path / "off", FileThread()), lines.append, clock
    )
    pair = (
        AdaptiveController(Worker(3), ours),
        AdaptiveController(Worker(3), AdaptiveSpeculativeParams(3)),
    )
    for controller in pair:
        controller.init_states(GRAPH_SIZES)
    return *pair, lines, clock


def follow(
    controllers, num_steps: int, acceptance: float, seed: int, clock: VirtualClock
) -> list[tuple[int, ...]]:
    """Steps of each controller, in a run in which all meet the same tokens."""
    rng, chosen = np.random.default_rng(seed), []
    for _ in range(num_steps):
        batch_size = int(rng.choice([1, 2, 7, 8, 20, 40, 70]))
        right = (rng.random((batch_size, 7)) < acceptance).cumprod(axis=1).sum(axis=1)
        for controller in controllers:
            controller.activate_step_by_batch(batch_size)
        chosen.append(tuple(controller.worker.speculative_num_steps for controller in controllers))
        clock.now += 0.01
        for controller, steps in zip(controllers, chosen[-1], strict=True):
            controller.on_verify_complete(np.minimum(right, steps).tolist(), batch_size)
    return chosen


def test_switched_off_each_choice_is_sglangs(tmp_path):
    (tmp_path / "off").touch()
    ours, own, lines, clock = controllers(tmp_path)
    chosen = follow((ours, own), 600, 0.7, 1, clock)
    assert all(a == b for a, b in chosen) and len({a for a, _ in chosen}) > 2
    assert ours.worker.num_switches == own.worker.num_switches > 10 and not lines


def test_after_an_error_each_choice_is_sglangs(tmp_path, monkeypatch):
    ours, own, lines, clock = controllers(tmp_path)
    monkeypatch.setattr(ours.params._chooser, "choose", lambda *_: 1 / 0)
    chosen = follow((ours, own), 600, 0.7, 2, clock)
    assert all(a == b for a, b in chosen)
    assert len(lines) == 1 and "division by zero" in lines[0]


@pytest.mark.parametrize("acceptance", [0.1, 0.95])
def test_only_states_that_sglang_has_captured_are_activated(tmp_path, acceptance):
    ours, own, lines, clock = controllers(tmp_path)
    follow((ours,), 1500, acceptance, 3, clock)  # the controller raises where a state is missing
    assert not lines
    slots = own.params._slots
    for size in (1, 7, 8, 20, 40, 70):
        assert set(ours.params.tiers(size)) == set(
            slots[max(start for start in slots if start <= size)].candidate_steps
        )


@pytest.mark.parametrize(("requests", "acceptance"), [(1, "0.9"), (64, "0.3")])
def test_it_is_no_slower_than_sglangs_policy(requests, acceptance, tmp_path, monkeypatch):
    """In virtual time, without the host's: the same on each machine. Long enough that the first
    second, in which each number of steps is timed, is a small part."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lib.emulated_gpu.sglang_loop.time.perf_counter", lambda: 0.0)
    scene = Scene("8b-h100", acceptance, requests, 64, 400, 0)
    assert measure(scene, "smartspec-all").speed > measure(scene, "sglang-all").speed


def test_a_fixed_number_of_steps_has_no_controller():
    assert make_worker("fixed:3", VirtualClock()).adaptive_controller is None
