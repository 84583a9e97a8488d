"""What `--act` measures, keeps and shows: windows with speculation and without, on the same
traffic."""

import itertools
import json
import logging
import math
import random
import re
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from statistics import NormalDist

import pytest
from prometheus_client import generate_latest
from scripted_server import scripted
from test_toggle import engine_of, off_metrics, serve

from smartspec.vllm_plugin import switch
from smartspec.vllm_plugin.ab import __main__ as ab
from smartspec.vllm_plugin.ab.comparison import ACT, GUARD, Guard, Pair, compare
from smartspec.vllm_plugin.ab.metrics import ToggleMetrics
from smartspec.vllm_plugin.ab.results import (
    ALL,
    Level,
    Results,
    level_name,
    t_quantile,
)
from smartspec.vllm_plugin.ab.windows import WINDOW, Meter, Part, Window
from smartspec.vllm_plugin.costs.steps import StepCosts
from smartspec.vllm_plugin.file_thread import FileThread

SLOW = (0.1, 0.005, 0.01)  # seconds of steps: few are enough for a window


def window(part: Part, speed: float, tokens: int = 1000, requests: float = 4.0) -> Window:
    seconds = tokens / speed / requests
    sums = {"tokens": tokens, "busy_seconds": seconds, "request_seconds": tokens / speed}
    return Window(part, 0.0, 100, part.seconds, **sums)


def pair(on: float, off: float, **options) -> Pair:
    return Pair(window(ACT[True], on, **options), window(ACT[False], off, **options))


def results_of(ratios) -> Results:
    found = Results()
    for ratio in ratios:
        found.add(pair(10 * ratio, 10))
    return found


def guard(said: list | None = None) -> Guard:
    said = [] if said is None else said
    return Guard(0.97, said.append, lambda *values: said.append(values))


def play(windows, speed_of, parts: int) -> list[str | None]:
    """Windows of these speeds, by reason: the reasons that came."""
    part, reasons = next(windows), []
    for _ in range(parts):
        reasons.append(part.reason)
        part = windows.send(window(part, speed_of(part)))
    return reasons


def test_the_ratio_is_that_of_the_same_traffic_with_and_without(tmp_path, caplog):
    """Eight requests at a time. In the model's own time the answer is known."""
    with caplog.at_level(logging.INFO):
        engine = engine_of(tmp_path, acceptance=0.8, seconds=SLOW, settings={"act": True})
        serve(engine, 0, num_requests=500, tokens=100)
    seconds = {}
    for policy in ("off", "fixed:3"):
        alone = engine_of(
            tmp_path / policy, acceptance=0.8, seconds=SLOW, settings={"policy": policy}
        )
        serve(alone, 0, num_requests=200, tokens=100)
        seconds[policy] = alone.now
    found = off_metrics(tmp_path)
    assert found["ab_pairs-0-all"] >= 5
    assert found["ab_ratio-0-all"] == pytest.approx(seconds["off"] / seconds["fixed:3"], rel=0.02)
    assert found["ab_ratio_low-0-all"] < found["ab_ratio-0-all"] < found["ab_ratio_high-0-all"]
    assert found["ab_pairs-0-8"] + found.get("ab_pairs-0-4", 0) == found["ab_pairs-0-all"]
    lines = [text for text in caplog.messages if text.startswith("A/B: SmartSpec has")]
    assert len(lines) == found["ab_pairs-0-all"] and "8 or more at a time" in lines[-1]


def test_it_stays_lossless_and_forgets_who_ended_in_a_window(tmp_path):
    for case in ({"method": "ngram"}, {"method": "draft_model", "is_async": True}):
        engine = engine_of(tmp_path / case["method"], seconds=SLOW, settings={"act": True}, **case)
        serve(engine, 0, num_requests=120, tokens=80)
        assert engine.now > 60
        serve(engine, 400, num_requests=1)
        speculation = engine.scheduler.speculation
        ended = {*speculation._ended_requests, *speculation._old_requests}
        assert len({*speculation.decider.callers._known} - ended) <= 1


def test_the_steps_that_try_lengths_are_in_no_pair(tmp_path, monkeypatch):
    """Before the controller there is no window, however long that takes."""
    engine = engine_of(tmp_path, seconds=SLOW, settings={"policy": "goodput", "act": True})
    toggle, begins = engine.scheduler.toggle, []
    begin = toggle._meter.begin
    monkeypatch.setattr(
        toggle._meter, "begin", lambda *each: (begins.append(engine.now), begin(*each))
    )
    monkeypatch.setattr(StepCosts, "is_complete", property(lambda self: engine.now > 90))
    serve(engine, 0, num_requests=60, tokens=100)
    assert engine.now > 90 and begins[0] > 90


def test_results_are_those_of_the_last_day(monkeypatch):
    found, minutes = Results(), itertools.count()
    monkeypatch.setattr("smartspec.vllm_plugin.ab.results.time.time", lambda: 60.0 * next(minutes))
    for minute in range(30 * 60):
        found.add(pair(8 if minute < 6 * 60 else 12, 10))
    level = found.levels[ALL]
    assert 23 * 60 <= level.pairs <= 24 * 60 and level.ratio == pytest.approx(1.2)
    assert found.since == 6 * 3600


def test_windows_without_traffic_count_for_nothing():
    pairs: list[Pair] = []
    windows = compare(pairs.append, None, lambda: True)
    speeds = {None: 20.0, WINDOW: 10.0}
    part = next(windows)
    for number in range(12):
        part = windows.send(
            window(part, speeds[part.reason], tokens=3 if number in (2, 5) else 500)
        )
    assert [each.log_ratio for each in pairs] == pytest.approx([math.log(2)] * 4)


def test_a_pause_between_two_windows_parts_them():
    late = window(ACT[True], 20)
    late.length = 3600.0
    assert Pair.of(late, window(ACT[False], 10)) is None
    assert Pair.of(window(ACT[True], 20), window(ACT[False], 10)) is not None


def test_traffic_that_repeats_every_minute_or_grows_favours_neither():
    """Always on first would find 1.5 here, and 1 / 1.5 the other way round."""
    found = Results()
    half_minute = [0]

    def speed_of(part: Part) -> float:
        half_minute[0] += 1
        return 15.0 if half_minute[0] % 2 else 10.0

    play(compare(found.add, None, lambda: randoms.random() < 0.5), speed_of, 200)
    assert found.levels[ALL].ratio == pytest.approx(1.0, abs=1e-6)
    low, high = found.levels[ALL].interval
    assert low < 1 < high


randoms = random.Random(7)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    for pairs in (6, 40):
        held = 0
        for _ in range(600):
            ratios = [1.2 * math.exp(randoms.gauss(0, 0.1)) for _ in range(pairs)]
            tokens = [int(1000 * randoms.uniform(0.5, 2.0)) for _ in ratios]
            found = [pair(10 * r, 10, tokens=n) for r, n in zip(ratios, tokens, strict=True)]
            low, high = Level.of(found).interval
            held += low < 1.2 < high
        assert 0.93 < held / 600 < 0.985


def test_quantiles_of_t():
    for freedom, value in ((2, 4.303), (4, 2.776), (10, 2.228), (1e9, NormalDist().inv_cdf(0.975))):
        assert t_quantile(freedom) == pytest.approx(value, rel=0.04)


def test_few_pairs_have_no_interval():
    assert results_of([1.2] * 4).levels[ALL].interval is None
    assert results_of([1.2, 1.3, 1.1, 1.2, 1.2]).levels[ALL].interval is not None
    assert [level_name(n) for n in (0.2, 1, 1.9, 2, 63.9, 64)] == ["1", "1", "1", "2", "32", "64"]


def test_a_step_as_long_as_a_window_counts_for_nothing():
    """As when the process was stopped, or a clock jumped."""
    meter = Meter()
    meter.begin(Part(None, 10.0), 0.0)
    for now in (1.0, 2.0, 3.0, 4.0, 4000.0, 4001.0, 3000.0, 3001.0):
        meter.finish_step(now, tokens=8, requests=4, is_idle=False)
    found = meter.end(3001.0)
    sums = (found.steps, found.tokens, found.busy_seconds, found.request_seconds)
    assert sums == (3, 24, 3.0, 12.0)
    assert found.speed == 2.0 and found.tokens_per_second == 8.0 and found.requests == 4.0


def test_pauses_of_traffic_count_for_nothing():
    meter = Meter()
    meter.begin(Part(None, 10.0), 0.0)
    for now in (0.1, 0.2, 0.3, 0.4, 0.5):
        meter.finish_step(now, tokens=1, requests=1, is_idle=now == 0.5)
    meter.begin_step(8.0)
    meter.finish_step(8.1, tokens=1, requests=1, is_idle=True)
    found = meter.end(10.0)
    assert found.steps == 3 and found.busy_seconds == pytest.approx(0.3)


def test_the_guard_needs_three_rounds_and_their_mean():
    noisy = deque([9.0, 10.0] + [9.9, 10.0] * 3 + [9.0, 10.0] + [8.0, 10.0, 8.0, 10.0, 10.1, 10.0])
    said: list = []
    reasons = play(
        guard(said).watch(), lambda part: 1.0 if part.seconds > 9 else noisy.popleft(), 17
    )
    assert GUARD not in reasons and not [each for each in said if isinstance(each, tuple)]
    losing = play(guard(said).watch(), lambda part: 9.5 if part.reason is None else 10.0, 10)
    assert losing[-1] == GUARD and said[-1][0] == pytest.approx(0.95)


def test_after_a_pair_that_loses_the_guard_judges(tmp_path):
    said: list = []
    reasons = play(
        compare(lambda pair: None, guard(said), lambda: True),
        lambda part: 9.0 if part.reason is None else 10.0,
        10,
    )
    assert reasons == [None, WINDOW] * 4 + [GUARD, None]
    assert said[-1] == (pytest.approx(0.9), 4.0, 300.0)


@contextmanager
def server_of(text: str):
    with scripted(said={"/metrics": text}) as server:
        yield server.url


def shown(tmp_path: Path, *results: Results) -> str:
    texts = []
    for number, found in enumerate(results):
        metrics = ToggleMetrics(tmp_path / f"{number}.onoff", number, FileThread())
        metrics.set_reason(None)
        metrics.set_switch(bool(number))
        if found.levels:
            metrics.set_results(found.levels, found.since)
        texts.append(generate_latest(metrics.registry).decode())
    return "vllm:num_requests_running 3.0\n" + "".join(texts)


def test_the_table_of_ab(tmp_path, capsys):
    found = results_of([1.2, 1.3, 1.2, 1.25, 1.2])
    for ratio in (0.9, 0.95):
        found.add(pair(10 * ratio, 10, requests=64.0))
    with server_of(shown(tmp_path, found, results_of([1.0]))) as url:
        for each in (f"{url}/metrics", url.removeprefix("http://"), url):
            assert ab.main([each]) == 0
        printed = capsys.readouterr().out
        assert ab.main([url, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
    assert [row.split()[:1] for row in printed.splitlines()[2:5]] == [["4"], ["64"], ["all"]]
    assert re.search(r"^Pairs since \d{4}-\d\d-\d\d \d\d:\d\d UTC\.$", printed, re.MULTILINE)
    assert "4 or more      5" in printed and "1.229" in printed and "0.925" in printed
    assert "Engine 1 serves without drafts now (switch)." in printed
    rows = {(row["engine"], row["requests"]): row for row in report["rows"]}
    few, many = rows["0", "4"], rows["0", "64"]
    assert many["ratio"] == pytest.approx(0.9247, abs=1e-3) and many["low"] is None
    assert few["low"] < few["ratio"] < few["high"]
    assert many["on_throughput"] == pytest.approx(64 * many["on_speed"])


def test_what_ab_says_where_there_is_nothing(tmp_path, capsys):
    with server_of(shown(tmp_path, Results())) as url:
        assert ab.main([url]) == 1
        assert "no pair of windows with traffic yet" in capsys.readouterr().out
        assert ab.main([f"{url}/other"]) == 2
    with server_of("vllm:num_requests_running 3.0\n") as url:
        assert ab.main([url]) == 2
    assert ab.main([url]) == 2
    other, none, gone = capsys.readouterr().err.splitlines()
    assert "answers 404" in other and "does not answer" in gone
    assert "not in use there, or cannot write to its cache folder" in none


def offs_of(ratio: float, scatter: float, days: float) -> list[float]:
    """When a guard switches off speculation of this ratio, in seconds; each measured ratio scatters
    so much."""
    draws, now, offs = random.Random(1), 0.0, []
    windows = Guard(0.97, lambda _: None, lambda *_: offs.append(now)).watch()
    part = next(windows)
    while now < days * 24 * 3600:
        now += part.seconds
        speed = (
            10 * (1.0 if part.reason else ratio) * math.exp(draws.gauss(0, scatter / math.sqrt(2)))
        )
        part = windows.send(window(part, speed))
    return offs


def test_a_guard_whose_ratios_scatter():
    assert not offs_of(1.1, 0.05, days=30)
    # of 5 minutes each: less than a hundredth of the time
    assert len(offs_of(1.1, 0.1, days=30)) < 60
    assert offs_of(0.9, 0.05, days=1)[0] < 300


def test_results_outlast_a_time_off(tmp_path):
    engine = engine_of(tmp_path, acceptance=0.8, seconds=SLOW, settings={"act": True})
    serve(engine, 0, num_requests=120, tokens=100)
    before = off_metrics(tmp_path)["ab_pairs-0-all"]
    switch.main(["off", "--cache", str(tmp_path / "cache")])
    serve(engine, 200, num_requests=4)
    switch.main(["on", "--cache", str(tmp_path / "cache")])
    serve(engine, 300, num_requests=120, tokens=100)
    assert off_metrics(tmp_path)["ab_pairs-0-all"] > before > 0
