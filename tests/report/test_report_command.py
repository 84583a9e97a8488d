"""`smartspec report` against servers that behave and servers that do not."""

import json
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import typer
from scripted_server import __file__ as SERVER
from scripted_server import scripted
from typer.testing import CliRunner

from smartspec.bench.client import LoadRequest
from smartspec.cli.report import report
from smartspec.report import live

app = typer.Typer()
app.command()(report)
FAST = ("--workloads", "chat", "--concurrency", "2", "--repetitions", "2")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(live, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0)


def invoke(output: Path, *args: str):
    return CliRunner().invoke(app, ["--output", str(output), *args], catch_exceptions=False)


def refused(output: Path, *args: str) -> str:
    with pytest.raises(ValueError) as caught:
        invoke(output, *args)
    return str(caught.value)


def servers(**running) -> list[str]:
    return [part for name, each in running.items() for part in ("--base-url", f"{name}={each.url}")]


@pytest.fixture
def two():
    """Servers, and the options that measure them."""
    with scripted() as a, scripted() as b:
        yield a, b, (*servers(a=a, b=b), *FAST)


def starts(monkeypatch, *options: str, of: str = "") -> None:
    """Started servers are scripted ones; with these options those whose policy is `of`, or all."""

    def command(policy, drafters, model, more=()):
        return [sys.executable, SERVER, *(options if of in ("", policy) else ())]

    monkeypatch.setattr(live, "serve_command", command)


def lines(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "runs.jsonl").read_text().splitlines()]


def test_two_running_servers_become_a_page_a_summary_and_raw_runs(tmp_path):
    out = tmp_path / "out"
    with scripted(seconds=0.5) as plain, scripted() as ours:
        load = (*FAST[:-1], "3", "--rates", "10", "--seconds", "1", "--api-key", "secret")
        result = invoke(out, *servers(plain=plain, smartspec=ours), *load)
        assert result.exit_code == 0, result.output
        assert len(plain.bodies) == len(ours.bodies) == 1 + 3 * (4 + 10)
        salts = {body["cache_salt"] for body in ours.bodies}
        assert len(salts) == 1 + 6  # the warm-up's, and one of each run
    page = (out / "index.html").read_text()
    assert re.search("faster in [12]", page)  # a cell may be lost in the noise of a busy machine
    for text in (
        "smartspec against plain, 2 cells: slower in 0",
        "Environment",
        "runs.jsonl",
        "10/s",
    ):
        assert text in page
    summary = json.loads((out / "summary.json").read_text())
    assert [each["verdict"] for each in summary["speed_ups"]] == ["faster", "faster"]
    assert summary["cells"][0]["acceptance"] == 0.5
    assert len(lines(out)) == 12 and len(lines(out)[0]["requests"]) == 4
    assert "secret" not in "".join(path.read_text() for path in out.iterdir())


def test_the_same_command_goes_on_and_another_matrix_is_refused(tmp_path, two):
    one, _, args = two
    for repetitions, sent in (("2", 1 + 8), ("2", 1 + 8), ("3", 1 + 8 + 1 + 4)):
        assert invoke(tmp_path, *args[:-1], repetitions).exit_code == 0
        assert len(one.bodies) == sent  # a warm-up where something is missing, and that
    message = refused(tmp_path, *args, "--max-tokens", "5")
    assert "another matrix (max_tokens: 64 there, 5 here)" in message
    assert "give another --output" in message


def test_a_server_that_refuses_is_named_before_anything_is_measured(tmp_path):
    with scripted() as good, scripted(mode="refuse") as bad:
        message = refused(tmp_path / "a", *servers(good=good, bad=bad), *FAST)
        assert "bad: " in message and "401" in message
    assert "gone: no server answers" in refused(tmp_path / "b", *servers(gone=bad), *FAST)
    for name in ("a", "b"):
        assert (tmp_path / name / "runs.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("mode", "reason"), [("garbage", "not a stream"), ("cut", "before [DONE]"), ("hang", "0.5 s")]
)
def test_a_server_that_streams_no_answers_is_named_before_anything_is_measured(
    tmp_path, mode, reason
):
    with scripted(mode=mode) as bad:
        message = refused(tmp_path, *servers(bad=bad), *FAST, "--timeout", "0.5")
    assert message.startswith("bad: the server at ") and reason in message


def test_a_server_that_goes_bad_midway_costs_its_own_runs_alone(tmp_path, two, monkeypatch):
    _, bad, args = two
    complete = live.LiveRuns.__call__

    def going_bad(self, run):
        bad.mode = "cut" if run.repetition == 1 else "sound"
        return complete(self, run)

    with monkeypatch.context() as patch:
        patch.setattr(live.LiveRuns, "__call__", going_bad)
        result = invoke(tmp_path, *args)
    assert result.exit_code == 1 and "3 runs, 1 failed" in result.output
    assert "What failed" in (tmp_path / "index.html").read_text()
    bad.mode = "sound"
    assert invoke(tmp_path, *args).exit_code == 0
    (failed,) = [line for line in lines(tmp_path) if line["failure"]]
    assert failed["variant"] == "b" and failed["failure"].startswith("4 of 4 requests failed: ")
    assert len(lines(tmp_path)) == 5


def test_a_prompt_that_comes_again_in_a_run_gets_another_cache_salt():
    requests = [LoadRequest(str(i), "chat", prompt, 8) for i, prompt in enumerate("abacaa")]
    salts = [(request.prompt, request.cache_salt) for request in live.isolated(requests, "s")]
    assert len(set(salts)) == 6 and all(salt is not None for _, salt in salts)
    # different prompts share what is learned in a run
    assert salts[0][1] == salts[1][1] == salts[3][1]


def test_a_server_that_knows_no_cache_salt_gets_none(tmp_path):
    with scripted(mode="no-salt") as server:
        assert invoke(tmp_path, *servers(a=server), *FAST).exit_code == 0
        assert all("cache_salt" not in body for body in server.bodies[1:])


def test_a_started_server_that_dies_is_started_again_and_its_run_failed(tmp_path, monkeypatch):
    # a warm-up, a run of four, and two of the next
    starts(monkeypatch, "--dies-after", "6", of="goodput")
    args = ("--policies", "off,goodput", *FAST)
    assert invoke(tmp_path, *args).exit_code == 1
    failures = [line["failure"] for line in lines(tmp_path) if line["failure"]]
    assert len(failures) == 1 and failures[0].startswith("the server goodput ended with status 3")
    # of the one that failed
    assert [path.name for path in tmp_path.glob("*.log")] == ["server-1.log"]
    starts(monkeypatch)
    assert invoke(tmp_path, *args).exit_code == 0
    assert sum(not line["failure"] for line in lines(tmp_path)) == 4


def test_a_server_that_does_not_start_is_an_error_with_its_last_words(tmp_path, monkeypatch):
    starts(monkeypatch, "--mode", "no start", of="goodput")
    message = refused(tmp_path, "--policies", "off,goodput", *FAST)
    assert "the server goodput ended with status 1: error: there is no such model" in message


def test_ctrl_c_keeps_what_there_is_and_says_how_to_go_on(tmp_path, two):
    a, b, args = two
    a.seconds = b.seconds = 0.1
    command = [sys.executable, "-m", "smartspec", "report", "--output", str(tmp_path), *args[:-1]]
    # a job in the background does not
    notice_interrupts = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command, "500"], preexec_fn=notice_interrupts, **pipes)
    while not (tmp_path / "runs.jsonl").exists() or len(lines(tmp_path)) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "the same command goes on" in stderr
    assert "1/1000 chat, 2 at once, " in stderr and " left" in stderr
    assert "index.html" in stdout and (tmp_path / "index.html").exists()
    assert not any(line["failure"] for line in lines(tmp_path))


def test_ctrl_c_while_the_page_is_written_loses_nothing(tmp_path, two, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("smartspec.report.page.write_page", interrupted)
        result = invoke(tmp_path, *two[2])
    assert result.exit_code == 130 and "the same command writes the page" in result.output
    assert invoke(tmp_path, *two[2]).exit_code == 0
    assert len(lines(tmp_path)) == 4 and (tmp_path / "index.html").exists()


BAD = {
    ("--workloads", "poetry"): "there is no workload poetry; there are chat,",
    ("--policies", "best"): "unknown policy 'best'",
    (
        "--concurrency",
        "1,x",
    ): "--concurrency must be numbers above 0 separated by commas, got '1,x'",
    ("--concurrency", ""): "--concurrency must be numbers above 0",
    ("--concurrency", "none"): "there is nothing to measure: give --concurrency",
    ("--rates", "-1"): "--rates must be numbers above 0",
    ("--steps", "poetry:1:2"): "there is no workload 'poetry'",
    (
        "--steps",
        "chat:1",
    ): "--steps must be WORKLOAD:RATE:SECONDS separated by commas, got 'chat:1'",
    ("--steps", "chat:1:0"): "--steps must be numbers above 0",
    ("--base-url", "http://127.0.0.1:1"): "--base-url must look like NAME=http://127.0.0.1:8000",
    ("--base-url", "a=ftp://x"): "must look like http://127.0.0.1:8000, got 'ftp://x'",
    ("--base-url", "a=http://x", "--drafters", "head"): "--drafters head is for started servers",
}


@pytest.mark.parametrize("args", BAD, ids=" ".join)
def test_bad_options_are_refused_before_anything_is_made(tmp_path, args):
    assert BAD[args] in refused(tmp_path / "out", *args)
    assert not (tmp_path / "out").exists()


def test_own_prompts_are_workloads_by_task(tmp_path):
    path, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    path.write_text('{"prompt": "a", "task": "one"}\n{"prompt": "b", "task": "two"}\n')
    short = ("--prompts", str(path), "--concurrency", "1", "--repetitions", "1")
    with scripted() as server:
        assert invoke(out, *servers(a=server), *short).exit_code == 0
    assert {line["cell"] for line in lines(out)} == {"one, 1 at once", "two, 1 at once"}
