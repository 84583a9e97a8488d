"""`smartspec report` against servers that behave and servers that do not."""

import json
import os
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


def servers(**urls: str) -> list[str]:
    return [part for name, url in urls.items() for part in ("--base-url", f"{name}={url}")]


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
        urls = servers(plain=plain.url, smartspec=ours.url + "/v1")
        args = (*urls, *FAST[:-1], "3", "--rates", "10", "--seconds", "1")
        result = invoke(out, *args, "--api-key", "secret")
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


def test_the_same_command_goes_on_and_another_matrix_is_refused(tmp_path):
    with scripted() as one, scripted() as two:
        urls = servers(a=one.url, b=two.url)
        assert invoke(tmp_path / "out", *urls, *FAST).exit_code == 0
        sent = len(one.bodies)
        assert invoke(tmp_path / "out", *urls, *FAST).exit_code == 0
        assert len(one.bodies) == sent  # nothing was missing
        assert invoke(tmp_path / "out", *urls, *FAST[:-1], "3").exit_code == 0
        assert len(one.bodies) == sent + 1 + 4
        message = refused(tmp_path / "out", *urls, *FAST, "--max-tokens", "5")
    assert (
        "another matrix (max_tokens: 64 there, 5 here)" in message
        and "give another --output" in message
    )


def test_a_server_that_refuses_is_named_before_anything_is_measured(tmp_path):
    with scripted() as good, scripted(mode="refuse") as bad:
        message = refused(tmp_path / "a", *servers(good=good.url, bad=bad.url), *FAST)
        assert "bad: " in message and "401" in message
        port = bad.server_address[1]
    message = refused(tmp_path / "b", *servers(gone=f"http://127.0.0.1:{port}"), *FAST)
    assert "gone: no server answers" in message
    for name in ("a", "b"):
        assert (tmp_path / name / "runs.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("mode", "reason"), [("garbage", "not a stream"), ("cut", "before [DONE]"), ("hang", "0.5 s")]
)
def test_a_server_that_streams_no_answers_is_named_before_anything_is_measured(
    tmp_path, mode, reason
):
    with scripted(mode=mode) as bad:
        message = refused(tmp_path, *servers(bad=bad.url), *FAST, "--timeout", "0.5")
    assert message.startswith("bad: the server at ") and reason in message


@pytest.mark.parametrize("mode", ["garbage", "hang", "cut"])
def test_a_server_that_goes_bad_midway_costs_its_own_runs_alone(tmp_path, mode):
    with scripted() as good, scripted() as bad:
        complete = live.LiveRuns.__call__

        def going_bad(self, run):
            bad.mode = mode if run.repetition == 1 else "sound"
            return complete(self, run)

        args = (*servers(good=good.url, bad=bad.url), *FAST, "--timeout", "0.5")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(live.LiveRuns, "__call__", going_bad)
            result = invoke(tmp_path / "out", *args)
        assert result.exit_code == 1 and "3 runs, 1 failed" in result.output
        assert "What failed" in (tmp_path / "out" / "index.html").read_text()
        bad.mode = "sound"
        assert invoke(tmp_path / "out", *args).exit_code == 0
    (failed,) = [line for line in lines(tmp_path / "out") if line["failure"]]
    assert failed["variant"] == "bad" and failed["failure"].startswith("4 of 4 requests failed: ")
    assert len(lines(tmp_path / "out")) == 5


def test_a_prompt_that_comes_again_in_a_run_gets_another_cache_salt():
    requests = [LoadRequest(str(i), "chat", prompt, 8) for i, prompt in enumerate("abacaa")]
    salts = [(request.prompt, request.cache_salt) for request in live.isolated(requests, "s")]
    assert len(set(salts)) == 6 and all(salt is not None for _, salt in salts)
    # different prompts share what is learned in a run
    assert salts[0][1] == salts[1][1] == salts[3][1]


def test_a_server_that_knows_no_cache_salt_gets_none(tmp_path):
    with scripted(mode="no-salt") as server, scripted() as other:
        assert invoke(tmp_path / "out", *servers(a=server.url, b=other.url), *FAST).exit_code == 0
        assert all("cache_salt" not in body for body in server.bodies[1:])


def test_a_started_server_that_dies_is_started_again_and_its_run_failed(tmp_path, monkeypatch):
    # a warm-up, a run of four, and two of the next
    starts(monkeypatch, "--dies-after", "6", of="goodput")
    result = invoke(tmp_path / "out", "--policies", "off,goodput", *FAST)
    assert result.exit_code == 1
    failures = [line["failure"] for line in lines(tmp_path / "out") if line["failure"]]
    assert len(failures) == 1 and failures[0].startswith("the server goodput ended with status 3")
    # of the one that failed
    assert [path.name for path in (tmp_path / "out").glob("*.log")] == ["server-1.log"]
    starts(monkeypatch)
    assert invoke(tmp_path / "out", "--policies", "off,goodput", *FAST).exit_code == 0
    assert sum(not line["failure"] for line in lines(tmp_path / "out")) == 4


def test_a_server_that_does_not_start_is_an_error_with_its_last_words(tmp_path, monkeypatch):
    starts(monkeypatch, "--mode", "no start", of="goodput")
    message = refused(tmp_path, "--policies", "off,goodput", *FAST)
    assert "the server goodput ended with status 1: error: there is no such model" in message


def test_ctrl_c_keeps_what_there_is_and_says_how_to_go_on(tmp_path):
    out = tmp_path / "out"
    with scripted(seconds=0.1) as one, scripted(seconds=0.1) as two:
        args = [
            sys.executable,
            "-m",
            "smartspec",
            "report",
            "--output",
            str(out),
            *servers(a=one.url, b=two.url),
            *FAST,
        ]
        # a job in the background does not
        notice_interrupts = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([*args[:-1], "500"], preexec_fn=notice_interrupts, **pipes)
        while not (out / "runs.jsonl").exists() or len(lines(out)) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "the same command goes on" in stderr
    assert "1/1000 chat, 2 at once, " in stderr and " left" in stderr
    assert "index.html" in stdout and (out / "index.html").exists()
    assert not any(line["failure"] for line in lines(out))


def test_ctrl_c_while_the_page_is_written_loses_nothing(tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with scripted() as a, scripted() as b:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("smartspec.report.page.write_page", interrupted)
            result = invoke(tmp_path / "out", *servers(a=a.url, b=b.url), *FAST)
        assert result.exit_code == 130 and "the same command writes the page" in result.output
        assert invoke(tmp_path / "out", *servers(a=a.url, b=b.url), *FAST).exit_code == 0
    assert len(lines(tmp_path / "out")) == 4 and (tmp_path / "out" / "index.html").exists()


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


def test_a_prompt_file_with_a_bad_line_is_named_by_its_number(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": 3}\n')
    assert f"{path}, line 2: `prompt` must be a non-empty string" in refused(
        tmp_path / "out", "--prompts", str(path)
    )


def test_own_prompts_are_workloads_by_task(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "task": "one"}\n{"prompt": "b", "task": "two"}\n')
    with scripted() as a, scripted() as b:
        args = (
            *servers(a=a.url, b=b.url),
            "--prompts",
            str(path),
            "--concurrency",
            "1",
            "--repetitions",
            "1",
        )
        assert invoke(tmp_path / "out", *args).exit_code == 0
    assert {line["cell"] for line in lines(tmp_path / "out")} == {
        "one, 1 at once",
        "two, 1 at once",
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    assert "cannot write to" in refused(tmp_path / "out", "--policies", "off", *FAST)
