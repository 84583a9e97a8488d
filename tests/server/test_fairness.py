"""Users beside each other: turns, limits, and texts that stay apart, through OpenAI's client."""

import openai
import pytest
from fake_server import MODEL, check_error, eventually, running_server
from test_life_cycle import in_background, text_of

from smartspec.server.http.keys import ApiKeys

PROMPT = "a long shared prompt, " * 20


@pytest.fixture(scope="module")
def shared_server(tokenizer):
    keys = ApiKeys({"crowd": 1.0, "one": 1.0})
    with running_server(
        tokenizer, keys=keys, max_batch=2, max_queue=12, max_queue_per_client=4
    ) as server:
        yield server


def as_client(server, key: str):
    return server.client.with_options(api_key=key).completions


def test_one_request_does_not_wait_for_a_crowd(shared_server):
    shared_server.executor.hold()
    crowd = {"Authorization": "Bearer crowd"}
    requests = [
        in_background(
            shared_server,
            headers=crowd,
            prompt=f"number {i} of many",
            max_tokens=400,
            ignore_eos=True,
        )
        for i in range(6)
    ]
    eventually(lambda: shared_server.engine.num_requests == 6)
    answer = shared_server.complete(headers=crowd, prompt="One")
    check_error(answer, 429, None, "6 of at most 6")
    one = in_background(shared_server, headers={"Authorization": "Bearer one"}, prompt="One two")
    eventually(lambda: shared_server.engine.num_requests == 7)
    shared_server.executor.let_go()
    assert text_of(one) == "One two"
    assert sum(request.done() for request in requests) <= 2
    assert all(request.result(30).status_code == 200 for request in requests)


def cached(completions, **body) -> int:
    answer = completions.create(model=MODEL, prompt=PROMPT, max_tokens=2, extra_body=body)
    return answer.usage.prompt_tokens_details.cached_tokens


def test_a_key_does_not_learn_what_another_sent(shared_server):
    crowd, one = as_client(shared_server, "crowd"), as_client(shared_server, "one")
    assert (cached(crowd), cached(crowd) > 0) == (0, True)
    assert (cached(one), cached(one) > 0) == (0, True)
    assert cached(one, cache_salt="x") == 0
    assert cached(crowd, cache_salt="x") == 0, "the salt of another key is not that of this one"
    assert cached(one, cache_salt="x") > 0


def test_keys_may_share(tokenizer):
    with running_server(tokenizer, keys=ApiKeys({"a": 1.0, "b": 1.0}, shared_cache=True)) as server:
        assert (cached(as_client(server, "a")), cached(as_client(server, "b")) > 0) == (0, True)


def test_a_salt_apart_without_keys(server):
    assert cached(server.client.completions, cache_salt="mine") == 0
    assert cached(server.client.completions, cache_salt="mine") > 0
    assert cached(server.client.completions, cache_salt="yours") == 0
    with pytest.raises(openai.BadRequestError, match="cache_salt"):
        cached(server.client.completions, cache_salt="")
