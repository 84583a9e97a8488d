"""Beside vLLM's adaptive verification: depth is decided here, what is verified by vLLM's workers,
by our step times."""

import logging

import numpy as np
import pytest
from toy_engine import FULL_GRAPHS, make_config, run

from smartspec.control import BatchView, CostCurve, DrafterView, LatencyModel
from smartspec.control.records import DrafterSpec
from smartspec.vllm_plugin.compatibility import EXECUTOR
from smartspec.vllm_plugin.step.adaptive import (
    ADMITTED,
    COSTS_SPACING,
    CostCurves,
    cost_curves,
    token_sizes,
)


def adaptive_config(tmp_path, **changes):
    graphs = {"cudagraph_mode": FULL_GRAPHS, "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]}
    adaptive = {"enable_adaptive_verification": True, "distributed_executor_backend": EXECUTOR}
    return make_config(tmp_path, method="draft_model", is_async=True, **graphs | adaptive | changes)


def tell(output, model_output, admitted):
    setattr(model_output, ADMITTED, admitted)


def test_texts_are_right_depth_varies_and_costs_are_sent(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "vllm.smartspec"):
        engine = run(adaptive_config(tmp_path), admits=tell, max_tokens=400)
    assert "policy goodput," in caplog.text and "failed" not in caplog.text
    assert len(set(engine.draft_lengths)) > 2
    sent = [number for number, costs in enumerate(engine.costs) if costs is not None]
    assert len(sent) > 1 and set(np.diff(sent)) == {COSTS_SPACING}
    assert all(isinstance(engine.costs[number], CostCurves) for number in sent)
    assert dict(engine.costs[sent[-1]].verify)[16] == pytest.approx(20 + 16, rel=0.15), (
        "20 ms a pass, 1 ms a token"
    )


def test_what_was_not_verified_says_nothing_of_acceptance(tmp_path):
    """Half of the drafts are not verified, at random. Counted as rejected, acceptance would be 0.35
    or so."""
    engine = run(adaptive_config(tmp_path), admits=tell, max_tokens=400, acceptance=0.7)
    table = engine.scheduler.speculation.learner.controller.state()["acceptance"]["draft_model"]
    assert table["observations"][0] > 100 and table["acceptance"][0] == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (lambda *_: None, "do not say which draft tokens they verified"),
        (lambda o, m, n: tell(o, m, [99] * len(n)), "99"),
    ],
    ids=["nothing", "too many"],
)
def test_without_a_sound_answer_vllm_goes_its_own_way(told, said, tmp_path, caplog):
    engine = run(adaptive_config(tmp_path), admits=told, max_tokens=60)
    assert "draft lengths are vLLM's own for 100 steps" in caplog.text and said in caplog.text
    assert engine.scheduler.rest.steps > 0


def test_another_executor_leaves_the_scheduler_to_vllm(tmp_path, caplog):
    engine = run(
        adaptive_config(tmp_path, distributed_executor_backend="ray"), admits=tell, num_requests=1
    )
    assert engine.scheduler.__class__.__name__ == "AsyncScheduler"
    assert f"needs --distributed-executor-backend {EXECUTOR}" in caplog.text


def test_curves_are_those_of_the_cost_model_at_the_batchs_context():
    target = CostCurve(knots=(0.0, 32.0), slopes=(0.0, 1e-4), constant=6e-3, per_context_token=1e-8)
    latency = LatencyModel(target, (CostCurve.linear(4e-4, 1e-6),))
    latency.use_drafters((DrafterSpec("eagle3", has_passes=True, kept_passes=1),))
    lengths = np.full(16, 5)
    view = BatchView(np.arange(16), np.full(16, 500), lengths, drafters=(DrafterView(lengths),))
    curves = cost_curves(latency, view, 3, (1, 16, 64, 256), max_rows=32)
    assert [size for size, _ in curves.verify] == [1, 16, 64, 256] and [
        n for n, _ in curves.draft
    ] == [1, 16, 32]
    seconds = dict(curves.verify)
    assert seconds[16] == pytest.approx(6 + 1e3 * 1e-8 * 16 * 501)
    assert seconds[256] == pytest.approx(seconds[16] + 1e3 * 1e-4 * (256 - 32), rel=1e-3)
    assert seconds[1] == pytest.approx(6.0, rel=1e-2)
    assert dict(curves.draft)[16] == pytest.approx(2 * (0.4 + 0.016)), (
        "the first of three passes runs in any case"
    )
    assert cost_curves(latency, view, 0, (1, 16), max_rows=32).draft == (
        (1, 0.0),
        (16, 0.0),
        (32, 0.0),
    )


def test_costs_are_sent_for_captured_sizes_and_beyond(tmp_path):
    assert token_sizes(adaptive_config(tmp_path)) == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert token_sizes(adaptive_config(tmp_path, cudagraph_capture_sizes=None))[:3] == (1, 2, 4)
