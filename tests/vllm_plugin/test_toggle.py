"""Speculation off and on while a server runs: the operator's file, the guard, and what breaks in
them."""

import os
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_scheduling import CASES, LOCKSTEP
from toy_engine import ToyEngine, failing, make_config, start

from smartspec.vllm_plugin import Scheduler, switch
from smartspec.vllm_plugin.ab.comparison import CALM_SECONDS, FIRST_REST_SECONDS, GUARD
from smartspec.vllm_plugin.ab.toggle import Toggle
from smartspec.vllm_plugin.ab.windows import WINDOW
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.speculation.speculation import Speculation
from smartspec.vllm_plugin.switch import Switch

COSTLY = (0.02, 0.004, 0.002)  # drafts make a step three times as long


def engine_of(
    tmp_path, *, acceptance=0.7, seconds=(0.02, 0.001, 0.002), settings=None, **case
) -> ToyEngine:
    config = make_config(tmp_path, settings={"policy": "fixed:3"} | (settings or {}), **case)
    return start(config, acceptance=acceptance, seconds=seconds)


def serve(
    engine: ToyEngine, first: int, num_requests: int = 8, tokens: int = 60
) -> list[list[int]]:
    """Requests to their end: the lengths that were verified in each step."""
    begin = len(engine.verified_lengths)
    for number in range(first, first + num_requests):
        engine.add(number, prompt_tokens=20 + number % 5, max_tokens=tokens + number % 7)
    engine.run(100_000)
    return engine.verified_lengths[begin:]


def metrics(tmp_path, kind: str) -> dict[str, float]:
    """What an engine left in its file of this kind: prom or onoff."""
    (path,) = (tmp_path / "cache" / "vllm").glob(f"*.{kind}")
    families = text_string_to_metric_families(path.read_text())
    return {
        "-".join([s.name.removeprefix("smartspec_"), *s.labels.values()]): s.value
        for family in families
        for s in family.samples
    }


def off_metrics(tmp_path) -> dict[str, float]:
    return metrics(tmp_path, "onoff")


@pytest.mark.parametrize("case", [*CASES, "lockstep"])
def test_the_file_switches_off_at_once_and_on_again(case, tmp_path, monkeypatch, caplog):
    engine = engine_of(tmp_path, **(LOCKSTEP if case == "lockstep" else CASES[case]))
    calls, call = [], Speculation.before_schedule
    monkeypatch.setattr(Speculation, "before_schedule", lambda self: calls.append(call(self)))
    assert any(map(any, serve(engine, 0)))
    folder = ["--cache", str(tmp_path / "cache")]
    assert switch.main(["off", *folder]) == 0
    engine.wait_for_files()
    assert off_metrics(tmp_path)["off-0-switch"] == 1  # while no request comes, too
    calls.clear()
    begin = len(engine.draft_lengths)
    assert not any(map(any, serve(engine, 8)))
    assert not calls and engine.scheduler.toggle.reason == "switch"
    drafted = set(engine.draft_lengths[begin:])
    # vLLM makes those all the same
    assert drafted == ({4} if case in ("ngram", "lockstep") else {0})
    assert off_metrics(tmp_path)["off-0-switch"] == 1
    speculation = engine.scheduler.speculation
    assert not speculation.decider.callers._known and not speculation._steps
    assert switch.main(["on", *folder]) == 0
    assert any(map(any, serve(engine, 16))) and calls
    assert off_metrics(tmp_path)["off-0-switch"] == 0
    assert "an operator said so" in caplog.text and "on again" in caplog.text


@pytest.mark.parametrize("case", CASES)
def test_drafts_under_way_are_dropped_within_a_second(case, tmp_path):
    """The file comes in the middle of requests, and goes."""
    engine = engine_of(tmp_path, **CASES[case])
    path = switch.switch_path(tmp_path / "cache")
    update, changed_at = engine.scheduler.update_from_output, {}

    def change(*arguments):
        for step, is_there in ((40, True), (300, False)):
            if len(engine.verified_lengths) >= step and step not in changed_at:
                changed_at[step] = engine.now
                path.touch() if is_there else path.unlink()
                engine.wait_for_files()
        times.append(engine.now)
        return update(*arguments)

    times: list[float] = []
    engine.scheduler.update_from_output = change
    lengths = serve(engine, 0, num_requests=60, tokens=150)
    while_off = [i for i, now in enumerate(times) if changed_at[40] + 0.1 < now <= changed_at[300]]
    assert len(while_off) > 50 and not any(any(lengths[i]) for i in while_off)
    assert any(map(any, lengths[:40])) and any(map(any, lengths[400:]))


@pytest.mark.parametrize("reason", ["switch", WINDOW])
@pytest.mark.parametrize("step", [5, 21, 40])
def test_what_is_over_is_counted_when_drafts_go_off(reason, step, tmp_path):
    """Steps are counted several at a time, and no request may come that would count the last
    ones."""
    engine = engine_of(tmp_path)
    update = engine.scheduler.update_from_output

    def change(*arguments):
        outputs = update(*arguments)
        if len(engine.verified_lengths) == step:
            if reason == WINDOW:
                engine.scheduler.toggle._set(WINDOW)
            else:
                switch.switch_path(tmp_path / "cache").touch()
                engine.wait_for_files()
        return outputs

    engine.scheduler.update_from_output = change
    serve(engine, 0, num_requests=3)
    verified = sum(map(sum, engine.verified_lengths))
    assert verified and not any(map(any, engine.verified_lengths[step + 1 :]))
    assert metrics(tmp_path, "prom")["verified_tokens_total-0"] == verified


def test_a_server_that_starts_with_the_file_is_off(tmp_path):
    switch.main(["off", "--cache", str(tmp_path / "cache")])
    engine = engine_of(tmp_path)
    assert not any(map(any, serve(engine, 0)))
    other = engine_of(tmp_path / "other")
    assert any(map(any, serve(other, 0)))


def test_a_file_that_cannot_be_seen_changes_nothing(tmp_path, monkeypatch, caplog):
    (tmp_path / "off").touch()
    files = FileThread()
    each = Switch(tmp_path / "off", files)
    assert each.is_off
    stat = os.stat

    def fail(path, **options):
        if Path(path) == tmp_path / "off":  # not those that other tests' threads look for
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    monkeypatch.setattr(switch.os, "stat", fail)
    assert files.wait() and files.wait() and each.is_off
    assert caplog.text.count("cannot be seen") == 1 and "stays off" in caplog.text


def test_clocks_that_jump(tmp_path, monkeypatch):
    """The clock on the wall is not read."""
    engine = engine_of(tmp_path)
    wall = iter([-1e9, 1e9] * 100_000)
    monkeypatch.setattr(time, "time", lambda: next(wall))
    assert any(map(any, serve(engine, 0)))
    assert Scheduler(make_config(tmp_path)).toggle._clock is time.monotonic


def test_a_folder_of_no_server_is_pointed_out(tmp_path, capsys):
    assert switch.main(["off", "--cache", str(tmp_path)]) == 0
    assert "is it the cache folder of yours?" in capsys.readouterr().out
    engine_of(tmp_path).wait_for_files()  # before its first request, too
    assert switch.main(["on", "--cache", str(tmp_path / "cache")]) == 0
    assert "is it the cache folder" not in capsys.readouterr().out


def test_a_command_that_cannot_make_the_file_says_so(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert switch.main(["off", "--cache", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "file" / "vllm" / "off") in said and "servers stay as they are" in said


def test_the_guard_switches_off_what_loses_says_why_and_tries_again(tmp_path, caplog):
    """Drafts that are never right, of a length that nothing corrects."""
    engine = engine_of(tmp_path, acceptance=0.0, seconds=COSTLY, settings={"guard": 0.97})
    reasons: list[tuple[float, str | None]] = []
    set_reason = engine.scheduler.toggle._set
    engine.scheduler.toggle._set = lambda reason: (
        reasons.append((engine.now, reason)),
        set_reason(reason),
    )
    serve(engine, 0, num_requests=2600, tokens=60)
    times = [now for now, reason in reasons if reason == GUARD]
    assert CALM_SECONDS + 30 < times[0] < CALM_SECONDS + 60
    assert FIRST_REST_SECONDS + 30 < times[1] - times[0] < FIRST_REST_SECONDS + 45
    assert 2 * FIRST_REST_SECONDS + 30 < times[2] - times[1] < 2 * FIRST_REST_SECONDS + 45
    assert "of the speed of no speculation (limit 0.97), at 8 requests at a time" in caplog.text
    assert "It is tried again in 5 minutes" in caplog.text and "in 10 minutes" in caplog.text
    found = off_metrics(tmp_path)
    assert found["guard_off_total-0"] == len(times) and found["guard_ratio-0"] < 0.8


def test_the_guard_lets_what_wins_be_and_takes_a_sixtieth_of_the_time(tmp_path, caplog):
    engine = engine_of(tmp_path, acceptance=0.9, settings={"guard": 0.97})
    lengths = serve(engine, 0, num_requests=900, tokens=120)
    plain = sum(not any(each) for each in lengths)
    assert engine.now > 3 * CALM_SECONDS and "Speculation is off" not in caplog.text
    assert off_metrics(tmp_path)["guard_ratio-0"] > 1.5
    assert plain / len(lengths) < 0.08  # prefill alone among them


@pytest.mark.parametrize(
    ("policy", "guards"), [("goodput", True), ("fixed:3", False), ("off", False)]
)
def test_a_length_that_a_person_chose_is_not_overruled(policy, guards, tmp_path):
    engine = engine_of(tmp_path, settings={"policy": policy})
    assert (engine.scheduler.toggle._make_windows is not None) == guards
    never = engine_of(tmp_path, settings={"policy": policy, "guard": 0})
    assert never.scheduler.toggle._make_windows is None


@pytest.mark.parametrize("method", ["before_schedule", "after_update"])
def test_an_error_in_it_leaves_drafts_as_they_are(method, tmp_path, monkeypatch, caplog):
    engine = engine_of(tmp_path, settings={"policy": "goodput"})
    before = engine.scheduler.dynamic_sd_lookup

    serve(engine, 0)
    monkeypatch.setattr(Toggle, method, failing)
    engine.scheduler.toggle._set("window")
    assert any(map(any, serve(engine, 8)))
    assert engine.scheduler.toggle is None and engine.scheduler.dynamic_sd_lookup is before
    assert "cannot be switched off" in caplog.text


def test_a_failing_controller_does_not_keep_the_switch_from_working(tmp_path, monkeypatch):
    engine = engine_of(tmp_path)

    monkeypatch.setattr(Speculation, "before_schedule", failing)
    assert any(map(any, serve(engine, 0)))  # lengths are vLLM's own
    switch.main(["off", "--cache", str(tmp_path / "cache")])
    assert not any(map(any, serve(engine, 8)))
