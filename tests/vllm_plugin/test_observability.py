"""What can be seen of the decisions: metrics in the registry of the process that serves HTTP, and
the decision log."""

import importlib
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY, generate_latest
from test_scheduling import CASES, run
from toy_engine import ToyEngine, make_config

from smartspec.control.log.recorded_log import RecordedLog
from smartspec.sim.replay.policy_replay import replay
from smartspec.vllm_plugin import Scheduler
from smartspec.vllm_plugin.ab.metrics import ToggleMetrics
from smartspec.vllm_plugin.costs.steps import TRIAL_STEPS
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.stat_logger import SCHEDULER, StatLogger
from smartspec.vllm_plugin.step.metrics import Metrics


@pytest.fixture
def clean_registry():
    before = set(REGISTRY._collector_to_names)
    yield REGISTRY
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


def front_end(config, scheduler_cls) -> SimpleNamespace:
    """The same configuration as the process sees it that serves HTTP."""
    return SimpleNamespace(
        **vars(config) | {"scheduler_config": SimpleNamespace(scheduler_cls=scheduler_cls)}
    )


def test_counters_are_those_of_the_run(tmp_path, clean_registry):
    config = make_config(tmp_path, settings={"policy": "fixed:3"})
    StatLogger(front_end(config, SCHEDULER), [0, 1])
    engine = run(config)
    value = clean_registry.get_sample_value
    assert engine.scheduler.speculation is not None
    verified = sum(map(sum, engine.verified_lengths))
    emitted = sum(len(text) - 20 - 7 * int(name) for name, text in engine.texts.items())
    assert value("smartspec_verified_tokens_total", {"engine": "0"}) == verified
    rows = [
        value("smartspec_chosen_lengths_total", {"engine": "0", "length": str(n)}) for n in range(4)
    ]
    assert sum(n * count for n, count in enumerate(rows)) == verified
    assert sum(rows) == value("smartspec_decode_rows_total", {"engine": "0"})
    # after vLLM has cut answers
    assert value("smartspec_emitted_tokens_total", {"engine": "0"}) == emitted
    assert value("smartspec_step_seconds_sum", {"engine": "0"}) == pytest.approx(engine.now)
    assert value("smartspec_controller_errors_total", {"engine": "0"}) == 0


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
    shown = set(
        re.findall(
            r"(?<!\w)smartspec_[a-z0-9_]+(?=\{)",
            (root / "deploy" / "grafana-vllm.json").read_text(),
        )
    )
    assert len(shown) > 10 and shown <= names
    rows = re.findall(
        r"^\| (`smartspec.*?) \|", (root / "docs" / "vllm.md").read_text(), re.MULTILINE
    )
    collected = [*registry.collect(), *toggle.collect()]
    families = {family.name + "_total" * (family.type == "counter") for family in collected}
    assert {name for cell in rows for name in re.findall(r"`([^`]+)`", cell)} == families


def test_metrics_that_cannot_be_written_change_no_decision(tmp_path, clean_registry, caplog):
    """As on a full disk: what was counted meanwhile is shown as soon as it can be."""
    config = make_config(tmp_path, settings={"policy": "fixed:3"})
    engine = ToyEngine(Scheduler(config))
    engine.wait_for_files()
    obstacle = tmp_path / "cache" / "vllm" / "toy-0.prom"
    obstacle.unlink()
    obstacle.mkdir()
    engine.serve(0, max_tokens=150)
    assert {length for lengths in engine.verified_lengths for length in lengths} <= {1, 2, 3}
    assert engine.scheduler.rest.steps == 0
    assert sum("metrics cannot be written" in message for message in caplog.messages) == 1
    obstacle.rmdir()
    StatLogger(front_end(config, SCHEDULER), [0])
    engine.serve(1, max_tokens=150)
    verified = sum(map(sum, engine.verified_lengths))
    assert (
        clean_registry.get_sample_value("smartspec_verified_tokens_total", {"engine": "0"})
        == verified
    )


@pytest.mark.parametrize("policy", ["fixed:3", "observe"])
def test_a_cache_folder_that_cannot_be_made_stops_no_server(
    tmp_path, clean_registry, caplog, policy
):
    """As on a full or read-only disk, from the start on."""
    (tmp_path / "cache").write_text("a file, not a folder")
    config = make_config(tmp_path, settings={"policy": policy})
    StatLogger(front_end(config, SCHEDULER), [0])
    engine = ToyEngine(Scheduler(config))
    engine.serve(0, max_tokens=150)
    assert engine.scheduler.rest.steps == 0 and engine.scheduler.speculation is not None
    said = [
        message
        for message in caplog.messages
        if "metrics cannot be written" in message and ".prom" in message
    ]
    assert len(said) == 1 and str(tmp_path / "cache") in said[0]
    (tmp_path / "cache").unlink()
    engine.serve(1, max_tokens=150)
    assert clean_registry.get_sample_value("smartspec_steps_total", {"engine": "0"}) > 0


def test_what_servers_left_is_removed_in_time(tmp_path):
    folder, days = tmp_path / "cache" / "vllm", 24 * 3600
    ages = {
        "old-0.prom": 8, "idle-0.prom": 6, "old-0.onoff": 8, ".storing-cut": 2, ".storing-now": 0.5,
        "observed/.storing-cut": 2, "observed/old-0.json": 31, "observed/newer-0.json": 29,
        "0123456789abcdef.json": 1000,
    }  # fmt: skip
    for name, age in ages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        os.utime(path, (time.time() - age * days,) * 2)
    run(make_config(tmp_path), num_requests=1, max_tokens=5)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left >= {"idle-0.prom", "toy-0.prom", "0123456789abcdef.json"}
    assert left & set(ages) == {
        "idle-0.prom", ".storing-now", "observed/newer-0.json", "0123456789abcdef.json",
    }  # fmt: skip


def test_the_newest_observation_stays(tmp_path):
    """With those of the other engines of that server."""
    folder = tmp_path / "cache" / "vllm" / "observed"
    folder.mkdir(parents=True)
    for name, days in {"last-0": 41, "last-1": 40, "before-0": 50}.items():
        (folder / f"{name}.json").write_text("")
        os.utime(folder / f"{name}.json", (time.time() - 24 * 3600 * days,) * 2)
    run(make_config(tmp_path), num_requests=1, max_tokens=5)
    assert {path.name for path in folder.iterdir()} == {"last-0.json", "last-1.json"}


def test_engines_are_shown_together(tmp_path, clean_registry):
    for index in (0, 1):
        config = make_config(tmp_path, data_parallel_index=index)
        run(config, num_requests=1)
    StatLogger(front_end(config, SCHEDULER), [0, 1])
    for index in ("0", "1"):
        assert clean_registry.get_sample_value("smartspec_steps_total", {"engine": index}) > 0


@pytest.mark.parametrize(
    "damage",
    [b"smartspec_steps_total{engine=", b"\xff\xfe\x00", b"\nsmartspec_steps_total x\n", b"{} {"],
)
def test_a_damaged_file_costs_no_other_metric(tmp_path, clean_registry, caplog, damage):
    for index in (0, 1):
        config = make_config(tmp_path, data_parallel_index=index)
        run(config, num_requests=1)
    StatLogger(front_end(config, SCHEDULER), [0, 1, 2])
    (damaged,) = (tmp_path / "cache" / "vllm").glob("*-0.prom")
    whole = damaged.read_bytes()
    end = whole.index(b"\n", len(whole) // 2) + 1  # in a comment the damage would be text
    damaged.write_bytes(whole[:end] + damage)
    steps = [
        clean_registry.get_sample_value("smartspec_steps_total", {"engine": index})
        for index in ("0", "1")
    ]
    assert steps[0] is None and steps[1] > 0
    assert b"smartspec_steps_total" in generate_latest(clean_registry)
    assert [record.args[0] for record in caplog.records if "left out" in record.message] == [
        damaged
    ]
    damaged.write_bytes(whole)
    assert clean_registry.get_sample_value("smartspec_steps_total", {"engine": "0"}) > 0


def test_without_the_scheduler_nothing_is_registered(tmp_path, clean_registry):
    before = set(clean_registry._collector_to_names)
    StatLogger(front_end(make_config(tmp_path), None), [0])
    assert set(clean_registry._collector_to_names) == before


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


def test_a_newer_interface_of_loggers_ends_no_server(tmp_path, monkeypatch, clean_registry):
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
