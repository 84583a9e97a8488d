"""`policies.py ablation` and `traces`: windows of a recording, paired intervals, runs continued,
pages of the JSON."""

import json
from pathlib import Path

import numpy as np
import pytest
from lib import trace_pages as pages
from lib import trace_scenarios as scenarios
from lib import trace_statistics as statistics
from lib import trace_tables as tables

from smartspec.sim.scenario import Scenario
from smartspec.workload.arrivals import read_trace

ROOT = Path(__file__).parents[2]


def recorded_jobs(folder: Path, num_requests: int) -> list:
    """Three windows of a recording of 100 requests, one a second, whose prompts have 1, 2, ... 100
    tokens."""
    lines = ["arrival_s,prompt_tokens,output_tokens", *(f"{i},{i + 1},2" for i in range(100))]
    (folder / "trace.csv").write_text("\n".join(lines))
    case = scenarios.Case("tiny", Scenario(trace="trace.csv"), "trace.csv", num_requests)
    return [scenarios.Job(case, "off", window) for window in range(3)]


@pytest.mark.parametrize("half, prompts", [("choose", range(1, 51)), ("report", range(51, 101))])
def test_windows_lie_in_their_half(tmp_path, half, prompts):
    jobs = recorded_jobs(tmp_path, 20)
    scenarios.write_windows(jobs, tmp_path, half, tmp_path)
    windows = [read_trace(job.scenario(tmp_path, half).trace) for job in jobs]
    assert all(len(window) == 20 and window.arrival_seconds[0] == 0 for window in windows)
    assert all(set(window.num_prompt_tokens.tolist()) <= set(prompts) for window in windows)
    assert len({int(window.num_prompt_tokens[0]) for window in windows}) == 3


def test_a_window_is_no_longer_than_its_half(tmp_path):
    jobs = recorded_jobs(tmp_path, 80)
    scenarios.write_windows(jobs, tmp_path, "report", tmp_path)
    assert {len(read_trace(job.scenario(tmp_path, "report").trace)) for job in jobs} == {50}


def test_variants_turn_off_one_mechanism_each_and_the_core_has_none():
    whole = scenarios.VARIANTS[scenarios.WHOLE]

    def changed(variant: str) -> set[str]:
        settings = scenarios.VARIANTS[variant]
        return {field for field in vars(whole) if getattr(settings, field) != getattr(whole, field)}

    single = [
        changed(name)
        for name in scenarios.VARIANTS
        if name not in (scenarios.WHOLE, scenarios.CORE)
    ]
    assert [len(fields) for fields in single] == [1] * len(single)
    assert changed(scenarios.CORE) == set().union(*single)


def test_ratios_are_of_the_same_requests():
    rng = np.random.default_rng(0)
    windows = [rng.lognormal(0, 1, 50).tolist() for _ in range(3)]
    faster = [[0.9 * seconds for seconds in window] for window in windows]
    found = statistics.compared(faster, windows)
    assert found.summary() == dict.fromkeys(("mean", "p50", "p99"), [pytest.approx(-10)] * 3)
    both = statistics.pooled([found, statistics.compared(windows, windows)])
    assert both.summary()["mean"] == [pytest.approx(100 * (0.9**0.5 - 1), abs=0.01)] * 3


def test_the_interval_of_a_mean_covers_it():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(20):
        pair = rng.lognormal(0, 0.2, (2, 200))  # of equal means
        change, low, high = statistics.compared(
            [pair[0].tolist()], [pair[1].tolist()], seed=trial
        ).summary()["mean"]
        assert low < change < high
        covered += low < 0 < high
    assert 14 <= covered <= 20


def test_runs_are_continued_and_charged(tmp_path):
    jobs = recorded_jobs(tmp_path, 5)
    path = tmp_path / "runs.jsonl"
    runs = tables.Runs(path, "report")
    runs.add("controller time | model | off", controller_seconds=[[1, 0.0], [256, 0.0]])
    tables.play(jobs[:2], runs, tmp_path, "report", 1)
    again = tables.Runs(path, "report")
    tables.play(jobs, again, tmp_path, "report", 1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["key"] for line in lines[1:]] == [
        f"report | tiny | off | {window}" for window in range(3)
    ]
    free = again.latencies("tiny", "off", 3)
    assert [len(window) for window in free] == [5, 5, 5]

    slow = tables.Runs(tmp_path / "slow.jsonl", "report")
    slow.add("controller time | model | off", controller_seconds=[[1, 1.0], [256, 1.0]])
    tables.play(jobs, slow, tmp_path, "report", 1)
    assert min(slow.latencies("tiny", "off", 3)[0]) > max(free[0])


@pytest.mark.parametrize(
    ("results", "page_of"),
    [("docs/results/ablation", pages.ablation_page), ("lab/results/traces", pages.traces_page)],
)
def test_pages_are_made_of_the_committed_results(results, page_of):
    data = json.loads((ROOT / f"{results}.json").read_text(encoding="utf-8"))
    assert data["half"] == "report"
    assert (ROOT / f"{results}.md").read_text(encoding="utf-8") == page_of(data)


def test_cases_are_chosen_by_how_their_names_begin():
    assert scenarios.trace_cases() == list(scenarios.TRACE_CASES)
    names = [case.name for case in scenarios.trace_cases("8B, Azure;70B, Burst")]
    assert names == ["8B, Azure conversations x6", "8B, Azure code x2", "70B, BurstGPT x500"]
    with pytest.raises(
        ValueError, match="no case begins with '9B': there are 8B, Azure conversations"
    ):
        scenarios.trace_cases("9B")
