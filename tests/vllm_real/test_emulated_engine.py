"""The executor of an emulated GPU in vLLM's engine core: all requests end with what the target
says, and give back their memory."""

import importlib
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
NUM_REQUESTS, NUM_TOKENS = 12, 40


def parts():
    """Modules that import vLLM: only once a test runs."""
    names = ("acceptance", "cells", "engine", "load")
    return [importlib.import_module(f"lib.emulated_gpu.{name}") for name in names]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("drafter", "policy"),
    [
        ("eagle3", "off"),
        ("eagle3", "fixed:3"),
        ("eagle3", "goodput"),
        ("eagle3", "adaptive-verification"),
        ("dflash", "goodput"),
        ("ngram", "goodput"),
    ],
)
def test_requests_end_with_what_the_target_says(drafter, policy, is_async, tmp_path):
    acceptance, cells, engine, load = parts()
    cell = cells.Cell("8b-h100", drafter, "closed:4", policy, is_async, acceptance="0.8/8")
    stated = acceptance.StatedAcceptance(cell.acceptance, cell.longest, cell.seed)
    core, gpu = engine.make_engine(cell, stated, tmp_path, None)
    try:
        free = core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        lengths = np.full(NUM_REQUESTS, NUM_TOKENS)
        began = time.perf_counter()
        client = load.Client(
            core, load.Load(0, NUM_REQUESTS, 2 * lengths, lengths, concurrency=4), gpu.clock.rest
        )
        ended = client.run(NUM_REQUESTS).ended
        seconds = time.perf_counter() - began
        while core.scheduler.has_requests() or core.batch_queue:  # a step that was under way
            core.step_fn()
        assert core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    finally:
        core.shutdown()
    assert {r.number: r.tokens for r in ended} == {
        number: stated.tokens(number, 0, NUM_TOKENS) for number in range(NUM_REQUESTS)
    }
    assert 0 < gpu.clock.busy + gpu.clock.idle <= seconds + 0.1  # the last step may still run
    assert len(gpu.log) < (0.7 if policy != "off" else 1.2) * NUM_REQUESTS * NUM_TOKENS / 4


def test_requests_of_a_trace_come_at_their_moments(tmp_path):
    acceptance, cells, engine, load = parts()
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "arrival_s,prompt_tokens,output_tokens\n0,20,4\n0.2,20,4\n0.8,20,4\n0.9,20,4\n"
    )
    cell = cells.Cell("8b-h100", "eagle3", f"trace:{trace}@2@3", "fixed:3", acceptance="0.8")
    requests = load.Load.of(cell)
    assert requests.concurrency is None and requests.arrival.tolist() == [0.0, 0.1, 0.4]
    stated = acceptance.StatedAcceptance(cell.acceptance, cell.longest, cell.seed)
    core, gpu = engine.make_engine(cell, stated, tmp_path, None)
    try:
        window = load.Client(core, requests, gpu.clock.rest).run(3)
    finally:
        core.shutdown()
    came = np.array([request.came - window.began for request in window.ended])
    assert np.allclose(came, [0.0, 0.1, 0.4], atol=0.02)
    assert all(0 < request.first - request.came < 0.1 for request in window.ended)
    assert gpu.clock.idle < 0.1  # time without requests does not count


@pytest.mark.parametrize(
    ("drafter", "policy", "is_async"),
    [("ngram", "fixed:3", False), ("ngram", "fixed:3", True), ("scheduler", "goodput", False)],
)
def test_recorded_texts_are_said_with_lookups_in_them(drafter, policy, is_async, tmp_path):
    acceptance, cells, engine, load = parts()
    repeated = tuple(range(10, 40))
    texts = [acceptance.Text((*repeated, n, *repeated[:8]), repeated[8:]) for n in range(3)]
    cell = cells.Cell(
        "8b-h100", drafter, "closed:2", policy, is_async, output_tokens=200, acceptance="texts:"
    )
    requests = load.Load.of(cell, texts)
    said = acceptance.TextAcceptance(texts, cell.longest)
    core, gpu = engine.make_engine(cell, said, tmp_path, None)
    try:
        ended = load.Client(core, requests, gpu.clock.rest).run(requests.num_measured).ended
    finally:
        core.shutdown()
    answers = [list(texts[request.number % 3].answer) for request in ended]
    assert [request.tokens for request in ended] == answers and len(ended) == requests.num_measured
    assert len(gpu.log) < 0.6 * sum(map(len, answers)) / 2  # nearly all drafts are right


@pytest.mark.parametrize("is_async", [False, True])
def test_a_preempted_request_goes_on_where_it_was(is_async, tmp_path, monkeypatch):
    acceptance, cells, engine, load = parts()
    setups = importlib.import_module("lib.emulated_gpu.setups")
    # as few as vLLM starts with
    monkeypatch.setattr(setups.Setup, "num_kv_blocks", lambda *arguments: 520)
    cell = cells.Cell("8b-h100", "eagle3", "closed:16", "fixed:3", is_async, acceptance="0.8/8")
    stated = acceptance.StatedAcceptance(cell.acceptance, cell.longest, cell.seed)
    core, gpu = engine.make_engine(cell, stated, tmp_path, None)
    lengths, preempted = np.full(16, 300), []
    preempt = core.scheduler._preempt_request
    core.scheduler._preempt_request = lambda *a, **o: (
        preempted.append(a[0].request_id),
        preempt(*a, **o),
    )[1]
    try:
        client = load.Client(
            core, load.Load(0, 16, lengths + 100, lengths, concurrency=16), gpu.clock.rest
        )
        ended = client.run(16).ended
    finally:
        core.shutdown()
    assert preempted
    assert {r.number: r.tokens for r in ended} == {
        number: stated.tokens(number, 0, 300) for number in range(16)
    }
