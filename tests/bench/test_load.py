import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scripted_server import WORDS, scripted

from smartspec.bench.client import LoadRequest, Target
from smartspec.bench.load import LoadPlan
from smartspec.bench.probe import find_model
from smartspec.bench.run import LoadSettings, measure, plan_load


@pytest.fixture
def fake():
    with scripted() as server:
        yield server


def requests(*prompts: str) -> list[LoadRequest]:
    return [
        LoadRequest(str(i), "qa", prompt, max_tokens=6, seed=i) for i, prompt in enumerate(prompts)
    ]


def asked(fake, *prompts: str, concurrency: int = 1, **options):
    plan = LoadPlan(requests(*prompts), concurrency=concurrency)
    return measure(Target(fake.url, "m", **options), plan)


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("chat", [True, False])
def test_an_answer_is_read_whole_and_counted_by_the_server(fake, chat):
    (record,), summary = asked(fake, "hello", chat=chat)
    assert record.text == "".join(WORDS)
    assert (record.num_prompt_tokens, record.num_output_tokens, record.has_usage) == (5, 6, True)
    assert (record.finish_reason, record.error) == ("stop", None)
    assert 0 < record.ttft_seconds < record.end_to_end_seconds
    assert (summary.speculation.acceptance_rate, summary.speculation.mean_k) == (0.5, 2.0)


def test_what_is_sent(fake):
    target = Target(fake.url, "m", api_key="k", temperature=0.5, ignore_eos=True, cache_salt="a")
    request = LoadRequest("0", "", "hello", max_tokens=9, seed=4, system="Be brief.")
    measure(target, LoadPlan([request], concurrency=1))
    measure(target, LoadPlan([replace(request, cache_salt="b")], concurrency=1))
    for sends_targets in (False, True):
        plain = Target(
            fake.url, "m", chat=False, tpot_target_seconds=0.05, sends_targets=sends_targets
        )
        measure(plain, LoadPlan([request], concurrency=1))
    common = {
        "model": "m",
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    sampled = {"temperature": 0.5, "seed": 4, "ignore_eos": True, "messages": messages}
    greedy = {"temperature": 0.0, "prompt": "hello"}
    assert fake.bodies == [
        common | sampled | {"cache_salt": "a"},
        common | sampled | {"cache_salt": "b"},
        common | greedy,
        common | greedy | {"speculation": {"tpot_target_ms": 50.0}},
    ]
    assert fake.authorizations == ["Bearer k", "Bearer k", None, None]


def test_a_server_that_is_gone_is_an_error_of_each_request():
    target = Target(f"http://127.0.0.1:{unused_port()}", "m")
    records, summary = measure(target, LoadPlan(requests("a", "b"), concurrency=1))
    assert summary.num_errors == 2
    assert records[0].error.startswith("ConnectError")


def test_a_request_that_takes_too_long_is_an_error(fake):
    (record,), _ = asked(fake, "hang", timeout_seconds=0.2)
    assert record.error == "no complete answer within 0.2 s"
    assert record.ttft_seconds is None


def test_closed_loop_keeps_the_concurrency(fake):
    fake.answers_from = 3  # the server answers no request before three requests are under way
    _, summary = asked(fake, *["hello"] * 8, concurrency=3)
    assert summary.num_completed == 8
    assert fake.most_under_way == 3


def test_open_loop_does_not_wait_for_answers(fake):
    fake.answers_from = 5
    plan = LoadPlan(requests(*["hello"] * 5), arrival_seconds=np.linspace(0.0, 0.1, 5))
    records, summary = measure(Target(fake.url, "m"), plan)
    assert summary.num_completed == 5
    assert fake.most_under_way == 5
    starts = {int(record.prompt_id): record.start_seconds for record in records}
    assert all(starts[i] >= arrival for i, arrival in enumerate(plan.arrival_seconds))


def test_finding_the_model(fake):
    assert find_model(fake.url) == "m"
    assert find_model(fake.url, "other") == "other"
    with pytest.raises(ValueError, match="no model 'x'; it serves m, other"):
        find_model(fake.url, "x")
    with pytest.raises(ValueError, match=r"no server answers at \S+ \(Connection refused\)"):
        find_model(f"http://127.0.0.1:{unused_port()}")
    with pytest.raises(ValueError, match="answered 404"):
        find_model(fake.url + "/nowhere")


@pytest.fixture
def prompts_file(tmp_path) -> str:
    path = Path(tmp_path / "prompts.jsonl")
    path.write_text("".join(f'{{"id": "{n}", "prompt": "{"x" * n}"}}\n' for n in (30, 10, 20)))
    return str(path)


def test_a_plan_follows_from_its_seed(prompts_file):
    plan = plan_load(LoadSettings(prompts_file, rate=2.0, num_prompts=7, seed=5))
    again = plan_load(LoadSettings(prompts_file, rate=2.0, num_prompts=7, seed=5))
    assert plan.requests == again.requests and len(plan.requests) == 7
    assert plan.arrival_seconds.tolist() == again.arrival_seconds.tolist()
    assert [request.seed for request in plan.requests] == list(range(5, 12))
    assert plan_load(LoadSettings(prompts_file)).concurrency == 1


def test_a_trace_plan_takes_times_lengths_and_the_order_of_prompt_lengths(prompts_file, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,900,5\n2,50,80\n4,100,7\n")
    plan = plan_load(LoadSettings(prompts_file, trace=str(trace), time_scale=2.0, max_tokens=20))
    assert plan.arrival_seconds.tolist() == [0.0, 1.0, 2.0]
    assert [request.prompt_id for request in plan.requests] == ["30", "10", "20"]
    assert [request.max_tokens for request in plan.requests] == [5, 20, 7]
