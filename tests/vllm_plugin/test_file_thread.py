"""A folder that hangs, as of a file server that is gone, costs no answer: neither of the scheduler
nor of /metrics."""

import io
import os
import threading
from pathlib import Path

import pytest
from toy_engine import ToyEngine, front_end, make_config, metric, start

from smartspec.vllm_plugin import stat_logger
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.observed.collector import ObservationCollector

CALLS = [(os, name) for name in ("stat", "open", "mkdir", "replace", "unlink", "scandir")] + [
    (io, "open")
]


class Hanging:
    """From begin to end, calls about files in this folder wait. In this thread they are noted, and
    fail."""

    def __init__(self, folder: Path, monkeypatch):
        self._monkeypatch = monkeypatch
        self.folder, self.is_back, self.noted = str(folder), threading.Event(), []
        self._thread = threading.get_ident()
        self.is_back.set()
        for owner, name in CALLS:
            monkeypatch.setattr(owner, name, self._around(getattr(owner, name), name))

    def begin(self) -> None:
        """From here on, patience is short."""
        for name in ("call", "wait"):
            self._monkeypatch.setattr(getattr(FileThread, name), "__defaults__", (0.1,))
        self._monkeypatch.setattr(stat_logger, "SCRAPE_SECONDS", 0.1)
        self.is_back.clear()

    def _around(self, call, name):
        def called(path, *arguments, **options):
            if not self.is_back.is_set() and str(path).startswith(self.folder):
                if threading.get_ident() == self._thread:
                    self.noted.append(name)
                    raise AssertionError(f"{name} of {path} in the thread that answers")
                self.is_back.wait()
            return call(path, *arguments, **options)

        return called


@pytest.fixture
def hanging(tmp_path, monkeypatch):
    folder = Hanging(tmp_path, monkeypatch)
    yield folder
    folder.is_back.set()


def serve(engine: ToyEngine, first: int) -> None:
    for number in range(first, first + 6):
        engine.add(number, prompt_tokens=20, max_tokens=150)
    engine._run(10_000)


@pytest.mark.parametrize(
    "settings",
    [{}, {"policy": "observe"}, {"act": True}, {"policy": "fixed:3", "decision_log": "LOG"}],
)
def test_a_folder_that_hangs_costs_no_answer(settings, tmp_path, hanging, caplog):
    settings = {
        name: str(tmp_path / "log") if value == "LOG" else value for name, value in settings.items()
    }
    engine = start(make_config(tmp_path, settings=settings))
    serve(engine, 0)
    assert engine.scheduler.files.wait(120.0)
    hanging.begin()
    serve(engine, 10)
    engine.scheduler.shutdown()  # nor does the end wait for long
    assert any("folder does not answer" in message for message in caplog.messages)
    assert not hanging.noted and engine.scheduler.rest.steps == 0
    hanging.is_back.set()
    assert engine.scheduler.files.wait(120.0)
    if "decision_log" in settings:
        assert len(Path(settings["decision_log"]).read_text().splitlines()) > 100


@pytest.mark.parametrize("settings", [{}, {"policy": "observe"}, {"act": True}])
def test_a_folder_that_hangs_from_the_start_costs_what_is_kept_there(
    settings, tmp_path, hanging, caplog
):
    hanging.begin()
    engine = start(make_config(tmp_path, settings=settings))
    serve(engine, 0)
    assert not hanging.noted
    assert engine.scheduler.speculation is not None and engine.scheduler.toggle is not None
    assert any("no answer of its disk" in message for message in caplog.messages)
    hanging.is_back.set()
    assert engine.scheduler.files.wait(120.0) and list((tmp_path / "cache" / "vllm").glob("*.prom"))


def test_metrics_do_not_wait_for_it_either(tmp_path, hanging):
    engine = start(make_config(tmp_path, settings={"policy": "observe"}))
    serve(engine, 0)
    engine.scheduler.shutdown()
    assert engine.scheduler.files.wait(120.0)
    (metrics,), (observation,) = (
        list((tmp_path / "cache").rglob(name)) for name in ("*.prom", "observed/*.json")
    )
    files = FileThread()
    collectors = (
        stat_logger.MetricsCollector([metrics], files),
        ObservationCollector([observation], files),
    )
    for each in collectors:
        assert not list(each.collect()) or files.wait(120.0)
    assert files.wait(120.0)
    before = [[family.name for family in each.collect()] for each in collectors]
    hanging.begin()
    for each, names in zip(collectors, before, strict=True):
        for _ in range(3):
            assert set(names) <= {family.name for family in each.collect()} and names
    assert not hanging.noted


def test_of_a_file_one_state_waits_and_a_job_that_fails_costs_a_line(caplog):
    files, may_go, done = FileThread(), threading.Event(), []
    files.post("first", may_go.wait)
    for number in range(3):
        files.post("metrics", lambda number=number: done.append(number))
    files.post("bad", lambda: 1 / 0)
    files.post("later", lambda: done.append("later"), 1e9)
    with pytest.raises(TimeoutError, match="no answer of its disk"):
        files.call(lambda: done.append("asked"), 0.05)
    assert not files.wait(0.05)
    may_go.set()
    assert files.wait(120.0) and done == [2, "later"]
    assert caplog.text.count("ZeroDivisionError") == 1 and files.call(lambda: 7) == 7


@pytest.mark.parametrize("policy", ["fixed:3", "observe"])
def test_where_the_folder_cannot_be_written_metrics_go_elsewhere(
    policy, tmp_path, clean_registry, caplog
):
    """As where it is full or read-only: one warning for each file, and no decision is changed."""
    (tmp_path / "cache").write_text("a file, not a folder")
    config = make_config(tmp_path, settings={"policy": policy})
    stat_logger.StatLogger(front_end(config), [0])
    engine = start(config)
    engine.wait_for_files()
    assert metric("off", reason="switch") == 0
    engine.serve(0, max_tokens=150)
    assert metric("steps_total") == len(engine.verified_lengths)
    engine.serve(1, max_tokens=150)
    warned = [text for text in caplog.messages if "cannot be written" in text]
    assert len(set(warned)) == len(warned) == 2 + (policy == "observe")
    assert all(str(tmp_path / "cache") in text for text in warned)
    (tmp_path / "cache").unlink()
    engine.serve(2, max_tokens=150)
    assert metric("verified_tokens_total") == sum(map(sum, engine.verified_lengths))
    assert engine.scheduler.rest.steps == 0 and engine.scheduler.speculation is not None
    assert not list((tmp_path / "tmp").glob("smartspec-*.prom"))
