import json
import signal
import sys

import pytest
import typer
from json_files import read_json
from scripted_server import scripted, start_in_terminal
from typer.testing import CliRunner

from smartspec.bench.run import LoadSettings, plan_load
from smartspec.cli.bench import bench
from smartspec.workload.prompts import shipped_prompts

app = typer.Typer()
app.command()(bench)


@pytest.fixture
def fake():
    with scripted() as server:
        yield server


def write_prompts(folder, *prompts: str) -> str:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return str(path)


def invoke(*args: str, code: int = 0) -> str:
    """What the command prints, which ends with this code."""
    result = CliRunner().invoke(app, list(args), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_a_run_prints_and_saves_its_figures(fake, tmp_path):
    output = tmp_path / "run.json"
    prompts = write_prompts(tmp_path, "hello", "busy", "again")
    printed = invoke(
        "--base-url", fake.url, "--prompts", prompts, "--api-key", "secret", "--output", str(output)
    )
    for text in ("policy goodput", "TTFT", "TPOT", "end to end", "requests failed", "1 x"):
        assert text in printed
    assert "the queue is full" in printed
    saved = read_json(output)
    assert saved["settings"]["model"] == "m" and saved["settings"]["policy"] == "goodput"
    assert saved["summary"]["num_completed"] == 2 and saved["summary"]["num_errors"] == 1
    assert saved["summary"]["speculation"]["counters"]["num_decode_rows"] == 20
    assert len(saved["requests"]) == 3
    assert "secret" not in output.read_text()


def test_without_a_prompt_file_the_shipped_prompts_are_sent(fake):
    invoke("--base-url", fake.url, "--num-prompts", "3", "--max-tokens", "2")
    asked = {body["messages"][-1]["content"] for body in fake.bodies}
    assert len(asked) == 3 and asked <= {prompt.text for prompt in shipped_prompts()}


def test_bad_options_are_refused_before_anything_is_sent(fake, tmp_path):
    prompts = write_prompts(tmp_path, "hello")
    cases = {
        "--concurrency and --rate exclude each other": ("--concurrency", "2", "--rate", "1"),
        "there is no folder": ("--output", str(tmp_path / "absent" / "run.json")),
        "positive number of requests": ("--rate", "nan"),
        "--time-scale 2 is for a --trace": ("--rate", "1", "--time-scale", "2"),
        "is a folder": ("--output", str(tmp_path)),
    }
    for message, options in cases.items():  # the last value of an option counts
        words = ["--base-url", fake.url, "--prompts", prompts, *options]
        with pytest.raises(ValueError, match=message):
            invoke(*words)
    assert fake.bodies == []


@pytest.mark.parametrize(
    "option", ["--temperature", "--timeout", "--tpot-target-ms", "--ttft-target-ms"]
)
@pytest.mark.parametrize("value", ["inf", "1e400", "nan"])
def test_settings_that_json_cannot_hold_are_refused_before_the_run(fake, tmp_path, option, value):
    """They are saved with the results, and would cost them."""
    words = ("--base-url", fake.url, "--num-prompts", "1", "--output", str(tmp_path / "run.json"))
    invoke(*words, option, value, code=2)
    assert fake.bodies == []


def test_a_run_in_which_everything_fails_fails(fake, tmp_path):
    words = ("--base-url", fake.url, "--prompts", write_prompts(tmp_path, "busy"))
    assert "the queue is full" in invoke(*words, code=1)


def test_ctrl_c_reports_and_saves_what_has_finished(fake, tmp_path):
    output = tmp_path / "run.json"
    prompts = write_prompts(tmp_path, "hello", "hang")
    first_prompt = {
        seed: plan_load(LoadSettings(prompts, seed=seed)).requests[0].prompt for seed in range(20)
    }
    seed = next(seed for seed, prompt in first_prompt.items() if prompt == "hello")
    script = "import typer; from smartspec.cli.bench import bench; typer.run(bench)"
    command = [sys.executable, "-c", script, "--base-url", fake.url, "--prompts", prompts]
    command += ["--concurrency", "1", "--seed", str(seed), "--output", str(output)]
    process = start_in_terminal(*command)
    assert fake.hangs.wait(timeout=60)  # one answer is complete, the other never will be
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "requests not finished" in stdout
    saved = read_json(output)
    assert [request["text"] for request in saved["requests"]] == ["One two três"]
    assert (saved["summary"]["num_completed"], saved["summary"]["num_unfinished"]) == (1, 1)
