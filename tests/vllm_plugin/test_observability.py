"""What can be seen of the decisions: metrics in the registry of the process that serves HTTP, and
the decision log."""

import importlib
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, generate_latest
from test_scheduling import CASES, run
from toy_engine import front_end, make_config, metric

from smartspec.control.log.recorded_log import RecordedLog
from smartspec.sim.replay.policy_replay import replay
from smartspec.vllm_plugin.ab.metrics import ToggleMetrics
from smartspec.vllm_plugin.costs.steps import TRIAL_STEPS
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.stat_logger import SCHEDULER, StatLogger
from smartspec.vllm_plugin.step.metrics import Metrics

pytestmark = pytest.mark.usefixtures("clean_registry")


def test_counters_are_those_of_the_run(tmp_path):
    config = make_config(tmp_path, settings={"policy": "fixed:3"})
    StatLogger(front_end(config), [0, 1])
    engine = run(config)
    assert engine.scheduler.speculation is not None
    verified = sum(map(sum, engine.verified_lengths))
    emitted = sum(len(text) - 20 - 7 * int(name) for name, text in engine.texts.items())
    assert metric("verified_tokens_total") == verified
    rows = [metric("chosen_lengths_total", length=str(n)) for n in range(4)]
    assert sum(n * count for n, count in enumerate(rows)) == verified
    assert sum(rows) == metric("decode_rows_total")
    # after vLLM has cut answers
    assert metric("emitted_tokens_total") == emitted
    assert metric("step_seconds_sum") == pytest.approx(engine.now)
    assert metric("controller_errors_total") == 0


def test_the_dashboard_and_the_page_have_the_metrics(tmp_path):
    root = Path(__file__).parents[2]
    registry = Metrics(tmp_path / "a.prom", 0, 0.0, FileThread())._registry
    names = {
        sample.name.removesuffix("_created")
        for family in registry.collect()
        for sample in family.samples
    }
    names |= {f"smartspec_{name}" for name in ("chosen_lengths_total", "step_seconds_bucket")}
    toggle = ToggleMetrics(tmp_path / "a.onoff", 0, FileThread()).registry
    names |= {family.name for family in toggle.collect()}
    dashboard = (root / "deploy" / "grafana-vllm.json").read_text()
    shown = set(re.findall(r"(?<!\w)smartspec_[a-z0-9_]+(?=\{)", dashboard))
    assert len(shown) > 10 and shown <= names
    page = (root / "docs" / "vllm.md").read_text()
    rows = re.findall(r"^\| (`smartspec.*?) \|", page, re.MULTILINE)
    collected = [*registry.collect(), *toggle.collect()]
    families = {family.name + "_total" * (family.type == "counter") for family in collected}
    assert {name for cell in rows for name in re.findall(r"`([^`]+)`", cell)} == families


def make_old(folder: Path, ages: dict[str, float]) -> None:
    """Files that servers left. ages: in days."""
    for name, age in ages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        os.utime(path, (time.time() - age * 24 * 3600,) * 2)


def test_what_servers_left_is_removed_in_time(tmp_path):
    folder = tmp_path / "cache" / "vllm"
    ages = {
        "old-0.prom": 8, "idle-0.prom": 6, "old-0.onoff": 8, ".storing-cut": 2, ".storing-now": 0.5,
        "observed/.storing-cut": 2, "observed/old-0.json": 31, "observed/newer-0.json": 29,
        "0123456789abcdef.json": 1000,
    }  # fmt: skip
    make_old(folder, ages)
    run(make_config(tmp_path), num_requests=1, max_tokens=5)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left >= {"idle-0.prom", "toy-0.prom", "0123456789abcdef.json"}
    assert left & set(ages) == {
        "idle-0.prom", ".storing-now", "observed/newer-0.json", "0123456789abcdef.json",
    }  # fmt: skip


def test_the_newest_observation_stays(tmp_path):
    """With those of the other engines of that server."""
    folder = tmp_path / "cache" / "vllm" / "observed"
    make_old(folder, {"last-0.json": 41, "last-1.json": 40, "before-0.json": 50})
    run(make_config(tmp_path), num_requests=1, max_tokens=5)
    assert {path.name for path in folder.iterdir()} == {"last-0.json", "last-1.json"}


@pytest.mark.parametrize(
    "damage",
    [b"smartspec_steps_total{engine=", b"\xff\xfe\x00", b"\nsmartspec_steps_total x\n", b"{} {"],
)
def test_a_damaged_file_costs_no_other_metric(tmp_path, caplog, damage):
    """Engines of a server are shown together."""
    for index in (0, 1):
        config = make_config(tmp_path, data_parallel_index=index)
        run(config, num_requests=1)
    StatLogger(front_end(config), [0, 1, 2])
    (damaged,) = (tmp_path / "cache" / "vllm").glob("*-0.prom")
    whole = damaged.read_bytes()
    end = whole.index(b"\n", len(whole) // 2) + 1  # in a comment the damage would be text
    damaged.write_bytes(whole[:end] + damage)
    steps = [metric("steps_total", index) for index in ("0", "1")]
    assert steps[0] is None and steps[1] > 0
    assert b"smartspec_steps_total" in generate_latest(REGISTRY)
    (said,) = [record for record in caplog.records if "left out" in record.message]
    assert said.args[0] == damaged
    damaged.write_bytes(whole)
    assert metric("steps_total") > 0


def test_without_the_scheduler_nothing_is_registered(tmp_path):
    before = set(REGISTRY._collector_to_names)
    StatLogger(front_end(make_config(tmp_path), None), [0])
    assert set(REGISTRY._collector_to_names) == before


@pytest.mark.parametrize("case", CASES)
def test_a_decision_log_can_be_replayed(case, tmp_path):
    path = tmp_path / "decisions.jsonl"
    engine = run(make_config(tmp_path, settings={"decision_log": str(path)}, **CASES[case]))
    recorded, (off, goodput) = replay(RecordedLog(path), ["off", "goodput"])
    assert recorded.policy == "goodput"
    # asynchronous: every second one
    assert recorded.num_steps > 0.4 * (len(engine.verified_lengths) - TRIAL_STEPS)
    assert recorded.tokens_per_second > 1.05 * off.tokens_per_second
    assert goodput.tokens_per_second == pytest.approx(recorded.tokens_per_second, rel=0.15)


def test_a_newer_interface_of_loggers_ends_no_server(tmp_path, monkeypatch):
    """SmartSpec is installed beside a vLLM that it does not know, whose servers make its logger all
    the same."""
    from vllm.v1.metrics import loggers

    class Newer(ABC):
        @abstractmethod
        def record(self, stats, *, more): ...

        @abstractmethod
        def record_more(self, stats): ...

    monkeypatch.setattr(loggers, "AggregateStatLoggerBase", Newer)
    monkeypatch.delitem(sys.modules, "smartspec.vllm_plugin.stat_logger")
    module = importlib.import_module("smartspec.vllm_plugin.stat_logger")
    for scheduler_cls in (None, SCHEDULER):
        logger = module.StatLogger(front_end(make_config(tmp_path), scheduler_cls), [0], "more")
        logger.record("stats", more=1)
        logger.record_more("stats")
