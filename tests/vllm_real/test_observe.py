"""Policy `observe` in vLLM itself: nothing is changed, and what is kept is what vLLM counts."""

import json
import subprocess
import sys
import time
import urllib.request

import pytest
from serving import (
    NGRAM,
    answers,
    asynchronous,
    counters,
    scheduler_of,
    self_draft,
    server,
    serving,
)

from smartspec.observation.files import newest_observation
from smartspec.observation.records import COLUMN

OBSERVE = {"policy": "observe"}


@pytest.mark.parametrize(
    ("method", "is_async"), [("ngram", False), ("self-draft", False), ("self-draft", True)]
)
def test_vllm_drafts_as_it_does_alone(method, is_async, model, prompts, tmp_path, monkeypatch):
    if is_async:
        asynchronous(monkeypatch)
    speculation = NGRAM if method == "ngram" else self_draft(model)
    found = []
    for folder in (None, tmp_path):
        with serving(model, speculation, folder, OBSERVE) as llm:
            before = counters(llm)
            got = answers(llm, prompts[:16])
            found.append((got, counters(llm) - before))
            if folder is not None:
                assert type(scheduler_of(llm).speculation).__name__ == "Observer"
                assert not scheduler_of(llm).rest.steps
    assert found[0] == found[1]
    observation = newest_observation(tmp_path)
    total = sum(observation.cells.values())
    counts = found[1][1]
    drafted = sum(outcome.drafted * n for outcome, n in observation.outcomes.items())
    assert drafted == counts["num_draft_tokens"]
    # Scheduled ahead, requests that have ended are fed once more: that takes time, and counts for
    # nothing else.
    assert total[COLUMN["verified_tokens"]] == drafted or (
        is_async and total[COLUMN["verified_tokens"]] > drafted
    )
    accepted = sum(outcome.accepted * n for outcome, n in observation.outcomes.items())
    assert accepted == counts["num_accepted_tokens"]
    assert observation.arrivals.requests == 16
    assert observation.setup["kv"]["drafter_share"] == (0.5 if method == "self-draft" else 0.0)


@pytest.mark.parametrize("given", [None, NGRAM])
def test_a_server_tells_what_it_observed(given, model, tmp_path):
    words = ["smartspec.vllm_plugin.serve", model, "--observe", "--cache", str(tmp_path)]
    words += [] if given is None else ["--speculative-config", json.dumps(given)]
    words += ["--served-model-name", "small", "--max-model-len", "512"]
    with server(words, tmp_path / "server.log") as address:
        for number in range(12):
            complete(address, f"Repeat three times: apple, pear, plum, number {number}.")
        # what ended last is written soon after: vLLM kills its engines at the end
        for _ in range(60):
            time.sleep(1)
            if any((tmp_path / "vllm/observed").glob("*.json")):
                said = observed(address, "--json")
                if said["traffic"]["requests"] == 12:
                    break
        assert said["traffic"]["requests"] == 12 and said["loads"][0]["now"] > 0
        for _ in range(2):  # a file that has changed shows with the next collection
            with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
                page = answer.read()
            time.sleep(1)
        assert b"smartspec_steps_total" in page and b"smartspec_observed_regret_ratio" in page
        assert said["setup"]["method"] == "ngram" and said["acceptance"]["all"]["tested"][0] > 0
    observed("--cache", str(tmp_path), "--json", "--card", str(tmp_path / "card.json"))
    assert json.loads((tmp_path / "card.json").read_text())["kind"] == "smartspec-card"


def complete(address: str, text: str) -> None:
    body = {
        "model": "small",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 40,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert json.load(answer)["choices"]


def observed(*arguments: str) -> dict:
    command = [sys.executable, "-m", "smartspec.vllm_plugin.observed", *arguments]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
