"""Other people's clients, unmodified, against a served real model."""

import importlib.metadata
import json
import os
import re
import shlex
from pathlib import Path

import httpx
import pytest
from default_model import configuration

SCRIPTS = Path(__file__).parent / "scripts"
HAS_INFERENCE_PERF = (Path(os.environ.get("SMARTSPEC_CLIENTS", "")) / "inference-perf").exists()


@pytest.fixture(scope="session")
def model(url) -> str:
    return httpx.get(f"{url}/v1/models").json()["data"][0]["id"]


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.py")))
def test_library(run, model, script):
    """Each script asserts what it gets. Its arguments: the model's name and the folder of its
    tokenizer."""
    assert (
        run("python", str(SCRIPTS / script), model, str(configuration())).splitlines()[-1] == "ok"
    )


def test_llm(run, url, model):
    home = Path(run("llm", "logs", "path").strip()).parent
    known = [{"model_id": "local", "model_name": model, "api_base": f"{url}/v1"}]
    (home / "extra-openai-models.yaml").write_text(json.dumps(known))  # JSON is YAML
    for streams in ([], ["--no-stream"]):
        assert run(
            "llm",
            "-m",
            "local",
            *streams,
            "-o",
            "max_tokens",
            "20",
            "What is the capital of France?",
        ).strip()


def test_guidellm(run, url, model, tmp_path):
    report = tmp_path / "report.json"
    options = {
        "backend": f"kind=openai_http,target={url},model={model}",
        "profile": "kind=concurrent,streams=2",
        "constraint": "kind=max_requests,count=4",
        "tokenizer": f"kind=huggingface_auto,model={configuration()}",
        "data": "kind=synthetic_text,prompt_tokens=32,output_tokens=16",
        "output": f"kind=json,path={report}",
    }
    run(
        "guidellm",
        "run",
        *(part for name, value in options.items() for part in (f"--{name}", value)),
    )
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (4, 0)


def test_the_guidellm_recipe_for_vllm(run, url, model, tmp_path):
    """As docs/vllm-how.md has it; any server that speaks OpenAI's protocol will do."""
    page = (Path(__file__).parents[2] / "docs" / "vllm-how.md").read_text()
    (command,) = re.findall(r"^    (guidellm run (?:.*\\\n)*.*)$", page, re.MULTILINE)
    prompts, report = tmp_path / "prompts.jsonl", tmp_path / "result.json"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"Count from {first} to ten."}) + "\n" for first in range(6))
    )
    for old, new in {
        "http://localhost:8000": url,
        f"target={url},model=MODEL": f"target={url},model={model}",
        "model=MODEL": f"model={configuration()}",
        "prompts.jsonl": str(prompts),
        "result.json": str(report),
        "count=200": "count=4",
        "streams=8": "streams=2",
    }.items():
        command = command.replace(old, new)
    run(*shlex.split(command.replace("\\\n", " ")))
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (4, 0)


@pytest.mark.skipif(not HAS_INFERENCE_PERF, reason="inference-perf needs Python 3.12")
def test_inference_perf(run, url, model, tmp_path):
    lengths = {"min": 8, "max": 8, "mean": 8, "std_dev": 0, "total_count": 8}
    config = {
        "api": {"type": "completion", "streaming": True},
        "data": {"type": "random", "input_distribution": lengths, "output_distribution": lengths},
        "load": {"type": "constant", "num_workers": 1, "stages": [{"rate": 4, "duration": 2}]},
        "server": {"type": "vllm", "base_url": url, "model_name": model, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(configuration())},
        "storage": {"local_storage": {"path": str(tmp_path)}},
    }
    (tmp_path / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    run("inference-perf", "--config_file", str(tmp_path / "config.yml"))
    summary = json.loads((tmp_path / "summary_lifecycle_metrics.json").read_text())
    assert (summary["successes"]["count"], summary["failures"]["count"]) == (8, 0)


# Its command is not installed by vLLM's CPU build.
VLLM_BENCH_SERVE = """
from argparse import ArgumentParser
from vllm.benchmarks.serve import add_cli_args, main
parser = ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@pytest.mark.skipif(
    "SMARTSPEC_VLLM" not in os.environ, reason="there is no vLLM: `make test-vllm` installs it"
)
@pytest.mark.parametrize(
    ("backend", "path"), [("openai", "completions"), ("openai-chat", "chat/completions")]
)
def test_vllm_bench_serve(run, url, model, tmp_path, backend, path):
    where = ["--backend", backend, "--base-url", url, "--endpoint", f"/v1/{path}", "--model", model]
    data = ["--tokenizer", str(configuration()), "--dataset-name", "random", "--num-prompts", "6"]
    lengths = ["--random-input-len", "20", "--random-output-len", "8", "--ignore-eos"]
    saved = ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json"]
    run(os.environ["SMARTSPEC_VLLM"], "-c", VLLM_BENCH_SERVE, *where, *data, *lengths, *saved)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (6, 0, 48)


def test_schemathesis(run, short_url):
    """Bodies made from the published document: no 5xx, and only content types it names."""
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    options = [
        "--checks",
        checks,
        "--max-examples",
        "30",
        "--phases",
        "examples,coverage,fuzzing",
        "--seed",
        "1",
    ]
    patience = ["--request-timeout", "60"]  # its 10 seconds are not enough on a busy machine
    run("schemathesis", "run", f"{short_url}/openapi.json", *options, *patience)
    assert httpx.get(f"{short_url}/health").json() == {"status": "ok"}


def test_server_is_still_well(url):
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{url}/version").json() == {
        "version": importlib.metadata.version("smartspec")
    }
