"""Policy `observe`: vLLM's own lengths, and what is kept of them."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from test_ab import server_of
from toy_engine import ToyEngine, failing, make_config, run, start
from vllm.schedulers import AsyncScheduler, Scheduler

from smartspec.observation.acceptance import acceptance_by_depth
from smartspec.observation.files import newest_observation, read_observation
from smartspec.observation.records import COLUMN
from smartspec.vllm_plugin import switch
from smartspec.vllm_plugin.file_thread import FileThread
from smartspec.vllm_plugin.observed import observer
from smartspec.vllm_plugin.observed.__main__ import main
from smartspec.vllm_plugin.observed.collector import TEXTS, ObservationCollector
from smartspec.vllm_plugin.setup import kv_memory
from smartspec.vllm_plugin.step.decision import Step

OBSERVE = {"policy": "observe"}


def observe(tmp_path, *, settings=OBSERVE, num_requests=6, **changes) -> ToyEngine:
    """A run in which SmartSpec only observes."""
    return run(make_config(tmp_path, settings=settings, **changes), num_requests=num_requests)


def observed(tmp_path, engine):
    """What the engine's observer has kept at its end."""
    engine.scheduler.shutdown()
    return newest_observation(tmp_path / "cache")


def file_of(tmp_path, engine) -> Path:
    """The file of that, the only one."""
    engine.scheduler.shutdown()
    (path,) = (tmp_path / "cache/vllm/observed").iterdir()
    return path


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_steps_are_those_of_vllm_alone(tmp_path, method, is_async):
    engine = observe(tmp_path, method=method, is_async=is_async)
    config = make_config(tmp_path, method=method, is_async=is_async)
    stock = ToyEngine((AsyncScheduler if is_async else Scheduler)(config))
    for number in range(6):
        stock.add(number, prompt_tokens=20 + 7 * number, max_tokens=120 + 5 * number)
    stock.run()
    assert engine.verified_lengths == stock.verified_lengths
    assert engine.draft_lengths == stock.draft_lengths
    assert engine.now == pytest.approx(stock.now)
    assert engine.scheduler.dynamic_sd_lookup is None


@pytest.mark.parametrize("is_async", [False, True])
def test_sums_are_those_of_the_steps(tmp_path, is_async):
    engine = observe(tmp_path, method="draft_model", is_async=is_async, num_requests=5)
    found = observed(tmp_path, engine)
    total = sum(found.cells.values())
    verified = sum(map(sum, engine.verified_lengths))
    # its last step fed nothing
    assert total[0] == found.num_steps == len(engine.num_decoding) - is_async
    assert total[COLUMN["seconds"]] == pytest.approx(engine.now)
    assert (
        total[COLUMN["verified_tokens"]]
        == verified
        == sum(o.drafted * n for o, n in found.outcomes.items())
    )
    assert total[COLUMN["decoding"]] == sum(engine.num_decoding)
    assert total[COLUMN["passes"]] == 4 * found.num_steps
    assert found.arrivals.requests == 5
    assert found.arrivals.prompt_tokens == sum(20 + 7 * number for number in range(5))
    assert {length for _, length, _ in found.cells} == {4}


def test_acceptance_is_counted_by_class(tmp_path):
    config = make_config(tmp_path, settings=OBSERVE)
    engine = start(config, acceptance=0.7)
    for number in range(6):
        named = {"smartspec_class": "code"} if number % 2 else {}
        engine.add(number, prompt_tokens=20, max_tokens=300, **named)
    engine.run()
    found = observed(tmp_path, engine)
    for name in ("", "code"):
        (first, _), *_ = acceptance_by_depth(found.by_class[name])
        assert first == pytest.approx(0.7, abs=0.06), name


def test_it_is_written_while_vllm_serves(tmp_path, monkeypatch):
    monkeypatch.setattr(observer, "WRITE_SECONDS", 1.0)
    engine = observe(tmp_path)
    (path,) = (tmp_path / "cache/vllm/observed").iterdir()
    assert 0 < read_observation(path).num_steps <= len(engine.draft_lengths)


def test_all_is_written_where_no_request_comes_any_more(tmp_path):
    """vLLM may be killed then, and what was observed is not to be lost: the last request ends soon
    after a write."""
    engine = start(make_config(tmp_path, settings=OBSERVE))
    for number in range(3):
        engine.serve(number, max_tokens=20)
    assert engine.now < observer.IDLE_WRITE_SECONDS
    assert newest_observation(tmp_path / "cache").arrivals.requests == 3


@pytest.mark.parametrize("table", [None, [4] * 9])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_an_operator_switches_drafts_off_there_too(tmp_path, method, is_async, table):
    """Steps without drafts are observed as such. Afterwards vLLM's own lengths are used as
    before."""
    settings = OBSERVE | {"guard": 1.5}
    config = make_config(tmp_path, method=method, is_async=is_async, settings=settings)
    engine = start(config)
    engine.scheduler.dynamic_sd_lookup = engine.scheduler.toggle._lookup = table
    engine.serve(0, max_tokens=100)
    before = len(engine.verified_lengths)
    switch.main(["off", "--cache", str(tmp_path / "cache")])
    engine.serve(1, max_tokens=400)
    while_off = engine.verified_lengths[before:]
    assert not any(map(any, while_off)) and len(while_off) > 300
    found, steps = engine.scheduler.speculation.observation, len(engine.verified_lengths)
    engine.scheduler.speculation._sum()
    off = {key: cell for key, cell in found.cells.items() if key[1] == 0}
    assert {drafted for *_, drafted in off} == {0}
    assert sum(cell[0] for cell in off.values()) == len(while_off) - is_async
    assert not any(outcome.length == 0 and outcome.drafted for outcome in found.outcomes)
    switch.main(["on", "--cache", str(tmp_path / "cache")])
    engine.serve(2, max_tokens=100)
    assert any(map(any, engine.verified_lengths[steps:]))
    assert set(engine.draft_lengths[steps:]) == {4}
    assert engine.scheduler.dynamic_sd_lookup is table
    assert found.arrivals.requests == 3


def test_what_cannot_be_switched_off_is_observed(tmp_path, monkeypatch, caplog):
    monkeypatch.delattr("smartspec.vllm_plugin.ab.toggle.Toggle")
    engine = observe(tmp_path, num_requests=2)
    assert observed(tmp_path, engine).num_steps > 0
    assert sum("cannot be switched off" in message for message in caplog.messages) == 1


def test_two_servers_on_one_folder_keep_both(tmp_path):
    for name in ("first", "second"):
        config = make_config(tmp_path, settings=OBSERVE)
        config.instance_id = name
        run(config).scheduler.shutdown()
    files = {path.name for path in (tmp_path / "cache/vllm/observed").iterdir()}
    assert files == {"first-0.json", "second-0.json"}


def test_what_cannot_be_observed_is_served(tmp_path, monkeypatch, caplog):
    monkeypatch.delattr("vllm.platforms.current_platform.get_device_name")
    engine = observe(tmp_path)
    assert engine.scheduler.speculation is None
    assert any("SmartSpec is not in use: this version" in message for message in caplog.messages)


def test_a_failure_while_observing_changes_no_answer(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Step, "size", failing)
    engine = observe(tmp_path)
    assert engine.draft_lengths == [4] * len(engine.draft_lengths)
    assert any("SmartSpec failed" in message for message in caplog.messages)


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    engine = observe(tmp_path)
    path = file_of(tmp_path, engine)
    before = path.read_bytes()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    engine.serve(9, max_tokens=50)
    engine.scheduler.shutdown()
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_clock_that_jumps_is_left_out(tmp_path):
    engine = observe(tmp_path, num_requests=2)
    engine.now -= 1000.0
    engine.serve(8, max_tokens=50)
    engine.add(9, prompt_tokens=20, max_tokens=50)
    for _ in range(3):
        engine.scheduler.schedule()
    engine.now += 5000.0
    found = observed(tmp_path, engine)
    assert sum(found.cells.values())[COLUMN["seconds"]] < 60


def test_the_metrics_hold_what_the_dashboard_shows(tmp_path):
    engine = observe(tmp_path, method="draft_model")
    engine.serve(*range(20, 24), max_tokens=200)
    path = file_of(tmp_path, engine)
    registry, files = CollectorRegistry(), FileThread()
    missing = tmp_path / "of-an-engine-that-has-not-begun.json"
    registry.register(ObservationCollector([path, missing], files))
    generate_latest(registry)
    assert files.wait()
    page = generate_latest(registry).decode()
    dashboard = (Path(__file__).parents[2] / "deploy/grafana-observe.json").read_text()
    shown = set(re.findall(r"smartspec_observed_([a-z_]+)(?=\{)", dashboard))
    assert len(shown) == 4 and shown <= set(TEXTS)
    assert re.search(
        r'expected_tokens_per_second\{known="seen",length="4",requests="[0-9.]+"\} [1-9]', page
    )


def test_the_command_reads_the_newest(tmp_path, capsys):
    observe(tmp_path, method="draft_model").scheduler.shutdown()
    assert main(["--cache", str(tmp_path / "cache")]) == 0
    assert "goodput" in capsys.readouterr().out


def metrics_page(*paths):
    registry = CollectorRegistry()
    registry.register(ObservationCollector(list(paths), FileThread()))
    return generate_latest(registry).decode()


def test_the_command_reads_what_a_server_names(tmp_path, capsys):
    """All engines, where they could write: a first collection names them already. URLs are written
    as for `ab`."""
    for index in (0, 1):
        observe(tmp_path, num_requests=3, data_parallel_index=index).scheduler.shutdown()
    first, second = sorted((tmp_path / "cache/vllm/observed").iterdir())
    moved = first.rename(first.with_name('a "quoted" name.json'))
    with server_of(metrics_page(moved, second, tmp_path / "of-an-engine-that-waits.json")) as url:
        for each in (url, f"{url}/", f"{url}/metrics", f"{url}/v1", url.removeprefix("http://")):
            assert main([each, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["traffic"]["requests"] == 6


def test_a_server_whose_observation_cannot_be_read_is_named(tmp_path, capsys):
    path = file_of(tmp_path, observe(tmp_path))
    page = metrics_page(path)
    path.unlink()
    with server_of(page) as url:
        assert main([url]) == 2
    with server_of("vllm:num_requests_running 3.0\n") as other:
        assert main([other]) == 2
    assert main([other]) == 2
    elsewhere, none, gone = capsys.readouterr().err.splitlines()
    assert str(path) in elsewhere and "kubectl exec POD -- smartspec vllm observed" in elsewhere
    assert "tells no observation: start the server with --observe" in none
    assert f"{other}/metrics does not answer" in gone


@pytest.mark.parametrize("name", ["draft_model.layers.0.attn", "model.layers.2.attn"])
def test_the_drafters_part_of_the_memory_for_kv(name):
    """Its layers have a name of their own, or numbers after the target's."""
    spec = SimpleNamespace(page_size_bytes=4096, block_size=16)
    small = SimpleNamespace(page_size_bytes=2048, block_size=16)
    names = ["model.layers.0.attn", "model.layers.1.attn", name]
    mixed = SimpleNamespace(**vars(spec), kv_cache_specs={name: small})
    scheduler = SimpleNamespace(
        kv_cache_config=SimpleNamespace(
            num_blocks=100,
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=mixed, layer_names=names)],
        ),
        vllm_config=SimpleNamespace(
            model_config=SimpleNamespace(get_total_num_hidden_layers=lambda: 2)
        ),
    )
    assert kv_memory(scheduler) == {"tokens": 1600, "drafter_share": 0.2}
    scheduler.kv_cache_config = None
    assert kv_memory(scheduler) is None
