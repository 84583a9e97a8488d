"""vLLM's own server with our scheduler, asked by the openai client; metrics come through to /metrics."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families
from serving import NGRAM

START_SECONDS = 180


@pytest.fixture(scope="module", params=[1, 3], ids=["one rank", "three ranks"])
def address(request, model, tmp_path_factory):
    ranks = request.param  # of tensor parallelism: the model has nine heads
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {"cache": str(folder), "decision_log": str(folder / "decisions.jsonl"), "metrics_seconds": 0}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port)]
    command += ["--served-model-name", "smollm2", "--enforce-eager", "--dtype", "float32", "--max-model-len", "1024"]
    command += ["--max-num-seqs", "4", "--tensor-parallel-size", str(ranks), "--speculative-config", json.dumps(NGRAM)]
    command += ["--scheduler-cls", "smartspec.vllm_plugin.Scheduler"]
    command += ["--additional-config", json.dumps({"smartspec": settings})]
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    if ranks > 1:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(rank % os.cpu_count()) for rank in range(ranks))
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, folder / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def wait_for(url: str, server: subprocess.Popen, log) -> None:
    for _ in range(START_SECONDS):
        try:
            urllib.request.urlopen(url, timeout=1)
            return
        except OSError:
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(1)
    raise AssertionError(log.read_text()[-3000:])


def metrics(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_answers_and_metrics(address):
    client = OpenAI(base_url=f"{address}/v1", api_key="none")
    question = [{"role": "user", "content": "Repeat this list twice: apple, pear, plum, cherry, apple, pear, plum."}]
    options = {"model": "smollm2", "messages": question, "max_tokens": 80, "temperature": 0.0}
    without = client.chat.completions.create(**options, extra_body={"vllm_xargs": {"smartspec_max_draft_tokens": 0}})
    before = metrics(address)
    answer = client.chat.completions.create(**options)
    after = metrics(address)
    assert answer.choices[0].message.content == without.choices[0].message.content
    assert before["smartspec_verified_tokens_total"] == 0 < after["smartspec_verified_tokens_total"]
    assert after["smartspec_verified_tokens_total"] == after["vllm:spec_decode_num_draft_tokens_total"]
    assert after["smartspec_step_seconds_sum"] > before["smartspec_step_seconds_sum"] > 0
