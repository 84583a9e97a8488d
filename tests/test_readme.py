"""The README's commands, as a newcomer would run them: real model, real server, real clients."""

import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from json_files import read_json

from smartspec.report import live

ROOT = Path(__file__).parents[1]
LIST = "one two three one two three one two"
README = (ROOT / "README.md").read_text()


def run(*command: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)


@contextmanager
def serving(*options: str, stop: signal.Signals = signal.SIGINT):
    """`smartspec serve`; yields its URL. At the end the signal must stop it cleanly."""
    process = subprocess.Popen(
        [sys.executable, "-m", "smartspec", "serve", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Ctrl-C stops" in line:
            break
    url = re.search(r"http://127\.0\.0\.1:\d+", "".join(lines))
    assert url, "".join(lines)
    assert sum(line.startswith("kernels: attention ") for line in lines) == 1
    yield url.group()
    process.send_signal(stop)
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 0, rest
    assert "Traceback" not in rest


@pytest.fixture(scope="module")
def server():
    with serving() as url:
        yield url


def client_of(server: str) -> tuple[openai.OpenAI, str]:
    """The client, and the name of the model."""
    client = openai.OpenAI(base_url=f"{server}/v1", api_key="unused")
    return client, client.models.list().data[0].id


def test_the_curl_line(server):
    command = re.search(r"curl http://127.*?}'", README, re.DOTALL).group()
    command = command.replace("\\\n", " ").replace("http://127.0.0.1:8000", server)
    answer = json.loads(run("bash", "-c", f"{command} --silent").stdout)
    assert answer["object"] == "chat.completion"
    assert (
        answer["choices"][0]["message"]["content"]
        and 0 < answer["usage"]["completion_tokens"] <= 100
    )


def test_the_openai_client_streams_what_it_gets_whole(server):
    client, model = client_of(server)
    call = {
        "model": model,
        "messages": [
            {"role": "user", "content": "Repeat three times: a stitch in time saves nine."}
        ],
        "max_tokens": 48,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**call)
    chunks = list(
        client.chat.completions.create(**call, stream=True, stream_options={"include_usage": True})
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_speculation_is_seen(server):
    client, model = client_of(server)
    client.completions.create(model=model, prompt=LIST, max_tokens=20)
    state = client.get("/speculation", cast_to=dict)
    assert state["policy"] == "goodput" and state["decisions"] and not state["ignored_input"]
    assert set(state["kernels"]) == {"attention", "elementwise", "layer", "linear"}
    assert all(
        text.startswith(("compiled with ", "torch's, because "))
        for text in state["kernels"].values()
    )


def test_bench(server, call, tmp_path):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "result.json"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"Count from {i} to ten."}) + "\n" for i in range(4))
    )
    what = ("--base-url", server, "--prompts", str(prompts), "--output", str(output))
    code, table, _ = call("bench", *what, "--concurrency", "2", "--max-tokens", "16")
    assert code == 0 and "TPOT" in table and "acceptance" in table.lower()
    assert len(read_json(output)["requests"]) == 4


def test_the_python_example():
    program = re.search(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE).group(1)
    result = run(sys.executable, "-c", program)
    assert result.returncode == 0, result.stderr
    num_accepted, num_steps = map(
        int, re.search(r"(\d+) draft tokens accepted in (\d+) steps", result.stdout).groups()
    )
    assert 0 < num_accepted + num_steps <= 24


def test_generate(call):
    code, answer, errors = call("generate", "Who wrote Hamlet?", "--max-tokens", "24")
    assert code == 0 and answer.strip() and "tokens/s" in errors


def test_doctor(call):
    """Its profile is the one that the server has measured."""
    code, output, _ = call("doctor")
    assert code == 0 and "ms per draft token" in output and "to change" in output


def test_a_report_on_a_running_server_and_one_that_is_started(server, call, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0)
    out = tmp_path / "out"
    what = ("--base-url", f"smartspec={server}", "--policies", "off", "--output", str(out))
    load = ("--workloads", "math", "--concurrency", "1", "--rates", "4")
    short = ("--repetitions", "1", "--seconds", "1", "--max-tokens", "8")
    code, *said = call("report", *what, *load, *short)
    assert code == 0, said
    summary = read_json(out / "summary.json")
    assert len(summary["cells"]) == 4 and len(summary["speed_ups"]) == 2
    verdicts = {each["verdict"] for each in summary["speed_ups"]}
    assert verdicts <= {"inside the noise", "too few repetitions"}
    # drafts change no answer
    assert all(each["equal_answers"] == 1.0 for each in summary["speed_ups"])
    assert all(each["tokens_per_second"] > 0 for each in summary["cells"])
    page = (out / "index.html").read_text()
    for text in ("smartspec against off, 2 cells", "mixed, Poisson arrivals", "4/s"):
        assert text in page
    assert summary["environment"]["cpu"] in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("serve --policy best", "unknown policy 'best'"),
        ("serve --model /nowhere", "unknown model '/nowhere'"),
        ("serve --kv-tokens 8", "kv_tokens 8 is too small"),
        ("serve --drafter prompt-lookup,,", "names separated by commas"),
        ("bench --base-url http://127.0.0.1:9 --prompts missing.jsonl", "missing.jsonl"),
    ],
)
def test_mistakes_get_one_line(call, arguments, message):
    code, _, errors = call(*arguments.split())
    assert code == 2 and message in errors and errors.count("\n") == 1


def test_a_server_that_is_told_to_end_leaves_a_whole_decision_log_that_can_be_replayed(
    call, tmp_path
):
    log = tmp_path / "decisions.jsonl"
    # of drafts that are trees a log cannot be replayed
    chains = ("--drafter", "prompt-lookup,recycling")
    with serving("--decision-log", str(log), *chains, stop=signal.SIGTERM) as url:
        client, model = client_of(url)
        completion = client.completions.create(
            model=model, prompt=LIST, max_tokens=30, temperature=0
        )
    _header, *lines = log.read_text().splitlines()
    assert (
        sum(json.loads(line)["num_emitted"] for line in lines) == completion.usage.completion_tokens
    )
    code, table, _ = call("log", "replay", str(log), "--policy", "goodput,fixed:2")
    assert code == 0 and "fixed:2" in table and "off" in table
