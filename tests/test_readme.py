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

ROOT = Path(__file__).parents[1]
SMARTSPEC = (sys.executable, "-m", "smartspec")
README = (ROOT / "README.md").read_text()


def run(*command: str, timeout: float = 300) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT)


@contextmanager
def serving(*options: str, stop: signal.Signals = signal.SIGINT):
    """`smartspec serve`; yields its URL. At the end the signal must stop it cleanly."""
    process = subprocess.Popen(
        [*SMARTSPEC, "serve", "--port", "0", *options],
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
    client = openai.OpenAI(base_url=f"{server}/v1", api_key="unused")
    model = client.models.list().data[0].id
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


def test_seeded_sampling_is_repeatable_and_speculation_is_seen(server):
    client = openai.OpenAI(base_url=f"{server}/v1", api_key="unused")
    call = {
        "model": client.models.list().data[0].id,
        "prompt": "one two three one two three one two",
        "max_tokens": 40,
    }
    first, second = (client.completions.create(**call, seed=11, n=2, logprobs=1) for _ in range(2))
    assert [c.text for c in first.choices] == [c.text for c in second.choices]
    state = client.get("/speculation", cast_to=dict)
    assert state["policy"] == "goodput" and state["decisions"] and not state["ignored_input"]
    assert set(state["kernels"]) == {"attention", "elementwise", "layer", "linear"}
    assert all(
        text.startswith(("compiled with ", "torch's, because "))
        for text in state["kernels"].values()
    )


def test_bench(server, tmp_path):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "result.json"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"Count from {i} to ten."}) + "\n" for i in range(4))
    )
    result = run(
        *(*SMARTSPEC, "bench", "--base-url", server, "--prompts", str(prompts)),
        *("--concurrency", "2", "--max-tokens", "16", "--output", str(output)),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "TPOT" in result.stdout and "acceptance" in result.stdout.lower()
    assert len(json.loads(output.read_text())["requests"]) == 4


def test_the_python_example():
    program = re.search(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE).group(1)
    result = run(sys.executable, "-c", program)
    assert result.returncode == 0, result.stderr
    num_accepted, num_steps = map(
        int, re.search(r"(\d+) draft tokens accepted in (\d+) steps", result.stdout).groups()
    )
    assert 0 < num_accepted + num_steps <= 24


def test_generate():
    result = run(*SMARTSPEC, "generate", "Who wrote Hamlet?", "--max-tokens", "24")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert "tokens/s" in result.stderr


def test_doctor():
    result = run(*SMARTSPEC, "doctor", "--max-batch", "4")
    assert result.returncode == 0, result.stderr
    assert "ms per draft token" in result.stdout and "to change" in result.stdout


def test_a_report_on_a_running_server_and_one_that_is_started(server, tmp_path):
    out = tmp_path / "out"
    what = ("--base-url", f"smartspec={server}", "--policies", "off", "--output", str(out))
    load = ("--workloads", "math,text-to-sql", "--concurrency", "2", "--rates", "4")
    short = ("--repetitions", "1", "--seconds", "1", "--max-tokens", "12")
    result = run(*SMARTSPEC, "report", *what, *load, *short, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert len(summary["cells"]) == 6 and len(summary["speed_ups"]) == 3
    verdicts = {each["verdict"] for each in summary["speed_ups"]}
    assert verdicts <= {"inside the noise", "too few repetitions"}
    # drafts change no answer
    assert all(each["equal_answers"] == 1.0 for each in summary["speed_ups"])
    assert all(each["tokens_per_second"] > 0 for each in summary["cells"])
    page = (out / "index.html").read_text()
    assert "smartspec against off, 3 cells" in page and "mixed, Poisson arrivals" in page
    assert summary["environment"]["cpu"] in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--policy", "best"], "unknown policy 'best'"),
        (["serve", "--model", "/nowhere"], "unknown model '/nowhere'"),
        (["serve", "--kv-tokens", "8"], "kv_tokens 8 is too small"),
        (["serve", "--drafter", "prompt-lookup,,"], "names separated by commas"),
        (
            ["bench", "--base-url", "http://127.0.0.1:9", "--prompts", "missing.jsonl"],
            "missing.jsonl",
        ),
    ],
)
def test_mistakes_get_one_line(arguments, message):
    result = run(*SMARTSPEC, *arguments)
    assert result.returncode == 2
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


def test_a_server_that_is_told_to_end_leaves_a_whole_decision_log_that_can_be_replayed(tmp_path):
    log = tmp_path / "decisions.jsonl"
    # of drafts that are trees a log cannot be replayed
    chains = ("--drafter", "prompt-lookup,recycling")
    with serving("--decision-log", str(log), *chains, stop=signal.SIGTERM) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused")
        call = {
            "model": client.models.list().data[0].id,
            "prompt": "one two three one two three one two",
        }
        completion = client.completions.create(**call, max_tokens=30, temperature=0)
    _header, *lines = log.read_text().splitlines()
    assert (
        sum(json.loads(line)["num_emitted"] for line in lines) == completion.usage.completion_tokens
    )
    replayed = run(*SMARTSPEC, "log", "replay", str(log), "--policy", "goodput,fixed:2")
    assert replayed.returncode == 0, replayed.stderr
    assert "fixed:2" in replayed.stdout and "off" in replayed.stdout
