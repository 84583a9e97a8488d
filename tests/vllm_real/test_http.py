"""vLLM's own server with our scheduler, called by the openai client; metrics come through to
/metrics."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families
from serving import NGRAM, server


@pytest.fixture(
    scope="module", params=[(1, 1), (3, 1), (1, 2)], ids=["one rank", "three ranks", "two replicas"]
)
def address(request, model, tmp_path_factory):
    ranks, replicas = request.param  # of tensor and data parallelism: the model has nine heads
    folder = tmp_path_factory.mktemp("server")
    settings = {
        "cache": str(folder),
        "decision_log": str(folder / "decisions.jsonl"),
        "metrics_seconds": 0,
    }
    words = ["vllm.entrypoints.openai.api_server", "--model", model]
    words += ["--served-model-name", "smollm2", "--max-model-len", "1024"]
    words += ["--tensor-parallel-size", str(ranks), "--data-parallel-size", str(replicas)]
    words += ["--scheduler-cls", "smartspec.vllm_plugin.Scheduler"]
    words += ["--per-request-spec-decode-metrics", "detailed"]
    words += ["--speculative-config", json.dumps(NGRAM)]
    words += ["--additional-config", json.dumps({"smartspec": settings})]
    environment = {}
    if ranks * replicas > 1:
        cores = [str(rank % os.cpu_count()) for rank in range(ranks * replicas)]
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(cores)
    with server(words, folder / "server.log", **environment) as running:
        yield running


def metrics(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    sums: Counter[str] = Counter({family.name: 0.0 for family in families})  # over engines
    for sample in (sample for family in families for sample in family.samples):
        sums[sample.name] += sample.value
    return sums


def counted(address: str, before: float = -1.0) -> dict[str, float]:
    """Metrics in which SmartSpec has as many draft tokens as vLLM, and more than before: each
    writes its own a moment after the step."""
    for _ in range(100):
        found = metrics(address)
        drafted = found["vllm:spec_decode_num_draft_tokens_total"]
        if found["smartspec_verified_tokens_total"] == drafted > before:
            return found
        time.sleep(0.1)
    raise AssertionError(found)


def test_answers_and_metrics(address):
    client = OpenAI(base_url=f"{address}/v1", api_key="none")
    question = [
        {
            "role": "user",
            "content": "Repeat this list twice: apple, pear, plum, cherry, apple, pear, plum.",
        }
    ]
    options = {"model": "smollm2", "messages": question, "max_tokens": 80, "temperature": 0.0}
    without = client.chat.completions.create(
        **options, extra_body={"vllm_xargs": {"smartspec_max_draft_tokens": 0}}
    )
    before = counted(address)
    assert before["smartspec_verified_tokens_total"] == 0
    answer = client.chat.completions.create(**options)
    after = counted(address, before=0)
    assert answer.choices[0].message.content == without.choices[0].message.content
    assert after["smartspec_step_seconds_sum"] > before["smartspec_step_seconds_sum"] > 0
    # as vLLM counts it, see docs/vllm.md
    request = answer.model_extra["metrics"]["speculative_decoding"]
    for total, name in (
        ("verified", "num_draft_tokens"),
        ("accepted", "num_accepted_draft_tokens"),
    ):
        assert (
            request[name]
            == after[f"smartspec_{total}_tokens_total"] - before[f"smartspec_{total}_tokens_total"]
        )
    assert sum(request["per_step_drafted"]) == request["num_draft_tokens"]
    assert max(request["per_step_drafted"]) <= NGRAM["num_speculative_tokens"]


def test_the_dashboard_shows_metrics_that_exist(address):
    dashboard = (Path(__file__).parents[2] / "deploy" / "grafana-vllm.json").read_text()
    shown = set(re.findall(r"vllm:\w+|(?<!\w)smartspec_[a-z0-9_]+(?=\{)", dashboard))
    assert len(shown) > 15 and shown <= set(metrics(address))


def test_the_benchmark_of_vllm(address, model, prompts, tmp_path):
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in prompts[:8])
    )
    command = (
        "import argparse, sys; from vllm.benchmarks.serve import add_cli_args, main; p = "
        "argparse.ArgumentParser(); "
    )
    # `vllm bench serve`, which the CPU wheel lacks
    command += "add_cli_args(p); main(p.parse_args())"
    options = ["--base-url", address, "--tokenizer", model]
    options += ["--dataset-path", str(tmp_path / "prompts.jsonl"), "--result-dir", str(tmp_path)]
    options += ["--model", "smollm2", "--dataset-name", "custom", "--custom-output-len", "24"]
    options += ["--num-prompts", "8", "--max-concurrency", "4", "--temperature", "0"]
    options += ["--save-result", "--result-filename", "r.json"]
    before = counted(address)
    subprocess.run([sys.executable, "-c", command, *options], check=True, timeout=600)
    result = json.loads((tmp_path / "r.json").read_text())
    after = counted(address, before["smartspec_verified_tokens_total"])
    assert result["completed"] == 8 and result["failed"] == 0
    drafted = after["smartspec_verified_tokens_total"] - before["smartspec_verified_tokens_total"]
    accepted = after["smartspec_accepted_tokens_total"] - before["smartspec_accepted_tokens_total"]
    assert (drafted, accepted) == (
        result["spec_decode_draft_tokens"],
        result["spec_decode_accepted_tokens"],
    )
    assert drafted > 0
