"""Counters agree with what answers say: a client that adds up `usage` finds what /metrics tells."""

import pytest
from fake_server import FakeServer, NeverHalfClosed, eventually, running_server
from prometheus_client.parser import text_string_to_metric_families

TEXT = "alpha beta gamma delta epsilon"


def counters(server: FakeServer) -> dict[str, float]:
    """Values of /metrics under vLLM's names, summed over their labels but the reasons of ends."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            name = sample.name.removeprefix("vllm:") + sample.labels.get("finished_reason", "")
            if sample.name.startswith("vllm:") and "le" not in sample.labels:
                found[name] = found.get(name, 0.0) + sample.value
    return found


CALLS = [
    {"prompt": TEXT, "max_tokens": 3},
    {"prompt": TEXT, "max_tokens": 64},  # to the end of sequence
    {"prompt": TEXT, "max_tokens": 64, "stop": " gamma"},
    {
        "prompt": TEXT,
        "max_tokens": 64,
        "stop": "ta ga",
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    {"prompt": [TEXT, "one two", TEXT + " zeta"], "n": 2, "max_tokens": 9},
    {"prompt": TEXT * 20, "max_tokens": 2},
    {"prompt": TEXT * 20, "max_tokens": 2},  # its prefix is cached
]


@pytest.mark.parametrize("draft_length", [0, 6], ids=["plain", "drafts"])
def test_tokens_are_those_of_usage(tokenizer, draft_length):
    usages, num_choices = [], 0
    with running_server(tokenizer, draft_length=draft_length) as server:
        for call in CALLS:
            answer = server.completion(**call)
            usages.append([*answer][-1].usage if call.get("stream") else answer.usage)
            num_choices += len(call["prompt"]) * call["n"] if "n" in call else 1
        found = counters(server)
    cached = sum(usage.prompt_tokens_details.cached_tokens for usage in usages)
    assert found["generation_tokens_total"] == sum(usage.completion_tokens for usage in usages)
    assert found["request_generation_tokens_sum"] == found["generation_tokens_total"]
    assert found["prompt_tokens_total"] == sum(usage.prompt_tokens for usage in usages)
    assert found["prefix_cache_queries_total"] == found["prompt_tokens_total"]
    assert found["prefix_cache_hits_total"] == found["prompt_tokens_cached_total"] == cached > 0
    assert found["request_success_totalstop"] + found["request_success_totallength"] == num_choices
    assert (
        found["e2e_request_latency_seconds_count"]
        == found["time_to_first_token_seconds_count"]
        == num_choices
    )
    accepted = found["spec_decode_num_accepted_tokens_total"]
    assert found.get("spec_decode_num_accepted_tokens_per_pos_total", 0) == accepted
    assert accepted <= found["spec_decode_num_draft_tokens_total"]
    assert found["num_preemptions_total"] == 0


def test_the_longest_choice_of_a_prompt_and_the_gaps_between_steps(tokenizer, own_server):
    own_server.complete(prompt=["one two three", "one"], n=2, max_tokens=9)
    found = counters(own_server)
    # and the end
    num_steps = [1 + len(tokenizer(prompt)["input_ids"]) for prompt in ("one two three", "one")]
    assert found["request_max_num_generation_tokens_count"] == 2
    assert found["request_max_num_generation_tokens_sum"] == sum(num_steps)
    assert found["inter_token_latency_seconds_count"] == 2 * sum(count - 1 for count in num_steps)
    assert found["request_time_per_output_token_seconds_count"] == 4


def test_what_a_client_got_before_it_left_is_counted(tokenizer):
    with running_server(tokenizer, connection=NeverHalfClosed) as server:
        server.executor.hold(after=3)
        stream = server.completion(prompt=TEXT * 9, max_tokens=99, stream=True)
        for _ in range(3):
            next(stream)
        stream.close()
        eventually(lambda: not server.engine.num_requests)
        server.executor.let_go()
        found = counters(server)
    assert found["request_success_totalabort"] == 1 and found["generation_tokens_total"] == 3
    assert found["prompt_tokens_total"] == len(tokenizer(TEXT * 9)["input_ids"])
    assert (
        found["time_to_first_token_seconds_count"] == 1
        and found["e2e_request_latency_seconds_count"] == 0
    )


def test_a_failure_counts_what_came_before_it(own_server):
    assert own_server.complete(prompt=TEXT, n=99).status_code == 400  # before it is a request
    own_server.executor.fail(after=2)
    assert own_server.complete(prompt=TEXT).status_code == 500
    found = counters(own_server)
    assert found["request_success_totalerror"] == 1 and found["generation_tokens_total"] == 2
    assert found["request_success_totalstop"] == found["request_success_totallength"] == 0


def test_preemptions_are_counted_and_change_no_counts(tokenizer):
    with running_server(tokenizer, kv_tokens=512) as server:
        prompts = [[5 + number] * 144 for number in range(3)]
        answer = server.completion(prompt=prompts, max_tokens=60, temperature=0)
        found = counters(server)
    assert found["num_preemptions_total"] > 0
    assert found["prompt_tokens_total"] == answer.usage.prompt_tokens == 3 * 144
    assert found["generation_tokens_total"] == answer.usage.completion_tokens == 180
    assert (
        found["prompt_tokens_cached_total"] == answer.usage.prompt_tokens_details.cached_tokens == 0
    )
