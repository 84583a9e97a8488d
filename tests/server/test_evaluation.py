"""What evaluations rely on, on the real model over HTTP: log-probabilities, seeds and choices are
the same to the bit with drafts and without, whichever drafter makes them and however many requests
run beside."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_server import FakeServer, user
from real_server import running_model

LIST = "1. red apple\n2. red pear\n3. red plum\n4. red apple\n5. red pear\n6. red plum\n7. red"
CHAT = [user(f"Continue this list:\n{LIST}")]
SCORED = {"prompt": LIST, "echo": True, "logprobs": 5, "max_tokens": 16, "temperature": 0}
LISTED = {"messages": CHAT, "logprobs": True, "top_logprobs": 5, "max_tokens": 48, "temperature": 0}
SAMPLED = {
    "prompt": LIST,
    "temperature": 0.8,
    "top_p": 0.95,
    "seed": 11,
    "n": 2,
    "max_tokens": 16,
    "logprobs": 2,
}
# One token again and again, which every drafter drafts and the target accepts, whatever the
# processor makes of logits.
REPEATED = {
    "prompt": LIST,
    "allowed_token_ids": [2003],
    "temperature": 0,
    "max_tokens": 16,
    "logprobs": 5,
}


@pytest.fixture(scope="module")
def real_server():
    with running_model(policy="fixed:4", drafters=("prompt-lookup",), max_model_len=512) as server:
        yield server


def choices(server: FakeServer, path: str, body: dict, longest: int) -> tuple[list[dict], int]:
    """The choices of an answer, and how many of their tokens were accepted draft tokens."""
    speculation = {"max_draft_tokens": longest, "report": True}
    answer = server.post(f"/v1/{path}", body | {"speculation": speculation})
    found = answer.json()["choices"]
    pieces = [piece for choice in found for piece in choice.pop("speculation")["pieces"]]
    return found, sum(piece["accepted"] for piece in pieces)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", SCORED),
        ("chat/completions", LISTED),
        ("completions", SAMPLED),
        ("completions", REPEATED),
    ],
    ids=["echo", "chat", "sampled", "repeated"],
)
def test_log_probabilities_are_the_same_with_and_without_drafts(real_server, path, body):
    plain, none = choices(real_server, path, body, 0)
    drafted, accepted = choices(real_server, path, body, 4)
    assert none == 0 and (accepted > 0 or body is not REPEATED)
    assert json.dumps(drafted) == json.dumps(plain)  # to the last digit


def test_a_seed_holds_beside_other_requests(real_server):
    alone, _ = choices(real_server, "completions", SAMPLED, 4)
    others = [SAMPLED | {"seed": seed, "n": 1} for seed in range(3)]
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(choices, real_server, "completions", other, 4) for other in others]
        beside, _ = choices(real_server, "completions", SAMPLED, 4)
        texts = {
            choice["text"]
            for found in (alone, *(done.result()[0] for done in running))
            for choice in found
        }
    assert len(texts) > 1
    assert beside == alone


def test_a_seed_holds_across_drafters(real_server):
    texts, _ = choices(real_server, "completions", SAMPLED, 4)
    with running_model(
        policy="fixed:4", drafters=("recycling",), max_model_len=512, max_batch=3
    ) as server:
        assert choices(server, "completions", SAMPLED, 4)[0] == texts
