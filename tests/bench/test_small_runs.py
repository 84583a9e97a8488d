"""Benchmarks that no other test runs, in the small: what they call is still there, and simple cases
come out right."""

from types import SimpleNamespace

import numpy as np
import pytest
import simulator
import start
from lib import controller_time, simulated_trees

from smartspec.bench.load import LoadPlan
from smartspec.control import CostCurve, LatencyModel
from smartspec.sim.world.recorded_acceptance import Recording


def test_a_simulated_run_without_drafts_takes_a_pass_for_every_token():
    nothing = Recording(np.zeros(9), np.zeros(9, dtype=int), np.zeros(9, dtype=int))
    curve = CostCurve.linear(0.01, 0.0)
    seconds = simulator.simulated_seconds(
        LoadPlan([], arrival_seconds=np.zeros(1)),
        [SimpleNamespace(num_prompt_tokens=10, num_output_tokens=9)],
        simulator.GroundTruthTime(curve, (), 0.0),
        simulator.RecordedGroundTruth([nothing], simulator.MAX_DRAFT_TOKENS),
        LatencyModel(curve),
    )
    assert seconds == pytest.approx(9 * 0.01)


def test_simulated_trees_have_the_nodes_that_they_are_allowed():
    (row,) = simulated_trees.rows_of(
        ["8b"], [1], nodes=5, later_child_share=0.2, context=256, pairs=60
    )
    assert row["chain of 5: verified"] == row["eagle2:60: verified"] == 5.0
    assert 0 < row["goodput, trees too: verified"] <= 5.0
    assert row["off"] < row["chain of 5"]


def test_the_controller_is_timed_in_every_policy(monkeypatch):
    monkeypatch.setattr(controller_time, "NUM_STEPS", 16)
    monkeypatch.setattr(controller_time, "NUM_WARM_UP_STEPS", 16)
    assert all(
        controller_time.step_seconds(policy, "lookup", 2) > 0 for policy in controller_time.POLICIES
    )


def test_the_default_models_weights_and_kv_are_counted():
    weights, kv = start._weights_and_kv()
    assert weights == pytest.approx(96.6, abs=0.1)
    # layers, heads, width, bytes, tokens
    assert kv == pytest.approx(2 * 30 * 3 * 64 * 4 * 32 * 1024 / 1e6)
