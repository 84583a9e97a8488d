"""A log of n-gram trees, which exist before the plan, replays to what the engine did."""

import numpy as np
import pytest
from tiny_engine import core_of, run
from tiny_models import VOCABULARY, as_loaded, tiny_llama

from lab.drafters.ngram_tree import NgramTree
from smartspec.control.controller import Controller
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.log.decision import LogHeader
from smartspec.control.log.recorded_log import RecordedLog
from smartspec.core.policy_names import parse_policy
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.executor import LiveExecutor
from smartspec.sim.replay.policy_replay import replay

K = 9


def record(path, policy: str) -> int:
    """Serve a few requests with n-gram trees and write the log; returns the tokens that were
    emitted."""
    drafter = NgramTree(max_draft_tokens=K)
    latency = LatencyModel(CostCurve.linear(0.02, 0.001))
    controller = Controller(parse_policy(policy), K, latency, drafters=(drafter.spec,))
    lines = [LogHeader("tiny", policy, K, (drafter.spec,), latency.to_dict()).to_json()]
    controller.on_record = lambda of_step: lines.append(of_step.to_json())
    executor = LiveExecutor(
        ModelRunner(as_loaded(tiny_llama()), num_slots=3, max_len=128), (drafter,)
    )
    core = core_of(executor, controller, 100, max_draft_tokens=K, max_batched_tokens=64)
    random = np.random.default_rng(1)
    params = SamplingParams(max_tokens=50, temperature=0.0)
    prompts = [random.integers(0, VOCABULARY, 12).tolist() for _ in range(6)]
    requests = run(core, [Request(i, prompt, params, seed=0) for i, prompt in enumerate(prompts)])
    path.write_text("".join(f"{line}\n" for line in lines))
    return sum(request.num_output_tokens for request in requests)


@pytest.mark.parametrize("policy", ["fixed:9", "fixed:4"])
def test_the_recorded_policy_replays_to_what_was_recorded(policy, tmp_path):
    emitted = record(tmp_path / "log.jsonl", policy)
    log = RecordedLog(tmp_path / "log.jsonl")
    assert any(each.parents is not None for step in log for each in step.view.drafters)
    then, (again,) = replay(log, [policy])
    assert again.num_emitted == then.num_emitted == emitted
    assert again.num_verified == then.num_verified
    assert again.seconds == pytest.approx(then.seconds, rel=1e-9)
    assert again.log_share == 1.0


def test_shorter_trees_than_recorded_are_known(tmp_path):
    record(tmp_path / "log.jsonl", "fixed:9")
    log = RecordedLog(tmp_path / "log.jsonl")
    then, (shorter, off) = replay(log, ["fixed:3", "off"])
    accepted = sum(
        int((s.outcome.node_tests[:, :3] == 1).sum())
        for s in log
        if s.outcome.node_tests is not None
    )
    accepted += sum(
        int(np.minimum(s.outcome.accepted, 3).sum()) for s in log if s.outcome.node_tests is None
    )
    assert off.num_emitted == then.num_emitted - sum(int(s.outcome.accepted.sum()) for s in log)
    assert shorter.num_emitted == off.num_emitted + accepted
    assert shorter.log_share == off.log_share == 1.0
