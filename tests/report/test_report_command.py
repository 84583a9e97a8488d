"""`smartspec report` against servers that behave and servers that do not."""

import json
import signal
import sys
import time
from pathlib import Path

import pytest
import typer
from scripted_server import __file__ as SERVER
from scripted_server import scripted, start_in_terminal
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


def invoke(output: Path, *args: str, code: int = 0) -> str:
    """What the command prints, which ends with this code."""
    arguments = ["--output", str(output), *args]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


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
        load = (*FAST[:-1], "3", "--concurrency", "2,4", "--api-key", "secret")
        invoke(out, *servers(plain=plain, smartspec=ours), *load)
        assert len(plain.bodies) == len(ours.bodies) == 1 + 3 * (4 + 8)
        salts = {body["cache_salt"] for body in ours.bodies}
        assert len(salts) == 1 + 6  # the warm-up's, and one of each run
    page = (out / "index.html").read_text()
    for text in (
        "smartspec against plain, 2 cells: slower in 0, inside the noise in 0, faster in 2",
        "Environment",
        "runs.jsonl",
    ):
        assert text in page
    summary = json.loads((out / "summary.json").read_text())
    assert [each["verdict"] for each in summary["speed_ups"]] == ["faster", "faster"]
    assert summary["cells"][0]["acceptance"] == 0.5
    assert len(lines(out)) == 12 and len(lines(out)[0]["requests"]) == 4
    assert "secret" not in "".join(path.read_text() for path in out.iterdir())


def test_the_same_command_goes_on(tmp_path, two):
    one, _, args = two
    for repetitions, sent in (("2", 1 + 8), ("2", 1 + 8), ("3", 1 + 8 + 1 + 4)):
        invoke(tmp_path, *args[:-1], repetitions)
        assert len(one.bodies) == sent  # a warm-up where something is missing, and that


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
        assert "3 runs, 1 failed" in invoke(tmp_path, *args, code=1)
    assert "What failed" in (tmp_path / "index.html").read_text()
    bad.mode = "sound"
    invoke(tmp_path, *args)
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
        invoke(tmp_path, *servers(a=server), *FAST)
        assert all("cache_salt" not in body for body in server.bodies[1:])


def test_a_started_server_that_dies_is_started_again_and_its_run_failed(tmp_path, monkeypatch):
    # a warm-up, a run of four, and two of the next
    starts(monkeypatch, "--dies-after", "6", of="goodput")
    args = ("--policies", "off,goodput", *FAST)
    invoke(tmp_path, *args, code=1)
    failures = [line["failure"] for line in lines(tmp_path) if line["failure"]]
    assert len(failures) == 1 and failures[0].startswith("the server goodput ended with status 3")
    # of the one that failed
    assert [path.name for path in tmp_path.glob("*.log")] == ["server-1.log"]
    starts(monkeypatch)
    invoke(tmp_path, *args)
    assert sum(not line["failure"] for line in lines(tmp_path)) == 4


def test_a_server_that_does_not_start_is_an_error_with_its_last_words(tmp_path, monkeypatch):
    starts(monkeypatch, "--mode", "no start", of="goodput")
    message = refused(tmp_path, "--policies", "off,goodput", *FAST)
    assert "the server goodput ended with status 1: error: there is no such model" in message


def test_ctrl_c_keeps_what_there_is_and_says_how_to_go_on(tmp_path, two):
    a, b, args = two
    a.seconds = b.seconds = 0.1
    command = (sys.executable, "-m", "smartspec", "report", "--output", str(tmp_path))
    process = start_in_terminal(*command, *args[:-1], "500")
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
        assert "the same command writes the page" in invoke(tmp_path, *two[2], code=130)
    invoke(tmp_path, *two[2])
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
        invoke(out, *servers(a=server), *short)
    assert {line["cell"] for line in lines(out)} == {"one, 1 at once", "two, 1 at once"}
