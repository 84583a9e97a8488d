"""Other people's clients, unmodified, against a served real model."""

import importlib.metadata
import json
from pathlib import Path

import httpx
import pytest
from default_model import configuration

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="session")
def model(url) -> str:
    return httpx.get(f"{url}/v1/models").json()["data"][0]["id"]


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.py")))
def test_library(run, model, script):
    """Each script asserts what it gets."""
    assert run("python", str(SCRIPTS / script), model).splitlines()[-1] == "ok"


def test_llm(run, url, model):
    home = Path(run("llm", "logs", "path").strip()).parent
    known = [{"model_id": "local", "model_name": model, "api_base": f"{url}/v1"}]
    (home / "extra-openai-models.yaml").write_text(json.dumps(known))  # JSON is YAML
    for streams in ([], ["--no-stream"]):
        assert run("llm", "-m", "local", *streams, "-o", "max_tokens", "20", "What is the capital of France?").strip()


def test_guidellm(run, url, model, tmp_path):
    report = tmp_path / "report.json"
    load = ["--profile", "concurrent", "--rate", "2", "--max-requests", "4"]
    data = ["--data", "prompt_tokens=32,output_tokens=16", "--processor", str(configuration())]
    run("guidellm", "benchmark", "run", "--target", url, "--model", model, *load, *data, "--output-path", str(report))
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (4, 0)


def test_schemathesis(run, short_url):
    """Bodies made from the published document: no 5xx, only answers it describes, and no wrong body accepted."""
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    options = ["--checks", checks, "--max-examples", "30", "--phases", "examples,coverage,fuzzing", "--seed", "1"]
    run("schemathesis", "run", f"{short_url}/openapi.json", *options)
    assert httpx.get(f"{short_url}/health").json() == {"status": "ok"}


def test_server_is_still_well(url):
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{url}/version").json() == {"version": importlib.metadata.version("smartspec")}
