"""`smartspec simulate` as a person uses it."""

import os
import re
import shlex
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import typer
from json_files import read_json
from recorded_run import ToyRun
from typer.testing import CliRunner

from smartspec.cli.main import _build_app
from smartspec.cli.runs import in_processes
from smartspec.cli.scenario_options import settings_of
from smartspec.core.policy_names import all_policies
from smartspec.sim import simulation
from smartspec.sim.scenario import Scenario
from smartspec.sim.virtual_engine import VirtualEngine

CARD = Path(__file__).parents[2] / "docs/results/cards/llama-3.1-8b-eagle3-h100.json"
SMALL = "simulate --num-requests 12 --output-tokens 20 --seeds 2 --controller-time none "


def invoked(line: str, **options):
    return CliRunner().invoke(_build_app(), shlex.split(SMALL + line), **options)


def call(line: str, code: int = 0) -> str:
    """What the command prints, which ends with this code."""
    result = invoked(line, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def table(output: str) -> list[list[str]]:
    """The cells of every line below the headings."""
    lines = output.rpartition("─")[2].splitlines()
    return [line.split() for line in lines if len(line.split()) == 9]


def policies_in(output: str) -> list[str]:
    return [cells[0] for cells in table(output)]


def test_table_and_file(tmp_path):
    saved = tmp_path / "runs.json"
    output = call(f"--batch 4 --policy off,fixed:2 --output {saved}")
    assert policies_in(output) == ["off", "fixed:2"], "the slowest comes first"
    runs = read_json(saved)["runs"]
    assert [(run["settings"]["policy"], run["settings"]["seed"]) for run in runs] == [
        ("off", 0), ("fixed:2", 0), ("off", 1), ("fixed:2", 1),
    ]  # fmt: skip
    for run in runs:
        assert run["summary"]["num_completed"] == len(run["requests"]) == 12
        assert run["requests"][0].keys() >= {
            "prompt_id",
            "ttft_seconds",
            "tpot_seconds",
            "end_to_end_seconds",
        }


@pytest.mark.parametrize(("milliseconds", "met"), [("0.001", "0.0%"), ("1000000", "100.0%")])
def test_wanted_times_to_the_first_token_are_counted(milliseconds, met):
    assert f" {met}" in call(f"--batch 4 --policy off --ttft-target-ms {milliseconds}")


def test_the_controller_is_charged_by_default(tmp_path):
    saved = tmp_path / "runs.json"
    line = f"--batch 4 --policy off,fixed:2 --max-batch 6 --output {saved}"
    assert "charged for the controller" in call(f"{line} --controller-time measured")
    runs = read_json(saved)["runs"]
    tables = {run["settings"]["policy"]: run["settings"]["controller_seconds"] for run in runs}
    assert all([size for size, _ in table] == [1, 2, 4, 6] for table in tables.values())
    assert all([0 < seconds < 1 for table in tables.values() for _, seconds in table])
    assert tables["off"] != tables["fixed:2"], "each policy has its own"


def test_a_trace_is_replayed(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,30,5\n0.5,40,6\n")
    call(f"--trace {trace} --policy off --drafter lookup")


def test_machine_and_acceptance_of_a_decision_log(tmp_path):
    """A plain pass of two rows takes 22 ms on the toy's machine, and a millisecond is the
    host's."""
    log = str(ToyRun("fixed:5", 400, num_rows=2).write(tmp_path / "decisions.jsonl"))
    recorded = f"--hardware {log} --acceptance {log} --drafter lookup --kv-tokens 9000 --jitter 0"
    output = call(f"--batch 2 --policy off,fixed:5 --prompt-tokens 2 {recorded}")
    rates = {cells[0]: float(cells[6]) for cells in table(output)}
    assert 0.2 < float(table(output)[-1][-1]) < 0.7, "of requests at 0.4 and at 0.9"
    assert rates["off"] == pytest.approx(2 / 0.023, rel=0.1)
    assert rates["fixed:5"] > rates["off"]
    assert "the machine and model of decisions.jsonl" in " ".join(output.split())
    with pytest.raises(ValueError, match="measured curves say nothing about memory"):
        call(f"--batch 2 --hardware {log} --drafter lookup")


def test_a_narrow_table_loses_no_digits():
    """A pipe counts as 80 columns."""
    output = call("--batch 4 --policy smartspec-request:1")
    assert "…" not in output and len(table(output)[0]) == 9


def test_runs_in_processes_are_the_same_runs(tmp_path):
    def play(name: str, processes: int) -> tuple[list[str], list[dict]]:
        saved = f"--processes {processes} --output {tmp_path / name}"
        output = call(f"--batch 4 --policy off,goodput {saved}")
        return table(output), read_json(tmp_path / name)["runs"]

    alone = play("alone.json", 1)
    assert alone == play("together.json", 2)
    (off, goodput), of_other_seed = alone[1][:2], alone[1][2]
    assert off["requests"] not in (goodput["requests"], of_other_seed["requests"])


def test_lengths_belong_to_their_policy_and_policies_count_once():
    output = call("--batch 4 --policy 'off, uniform:1, 3,5,off'")
    assert sorted(policies_in(output)) == ["off", "uniform:1,3,5"]


def test_default_policies_fit_the_longest_draft():
    output = call("--batch 4 --max-draft-tokens 3")
    assert sorted(policies_in(output)) == ["goodput", "off", "perfect-estimates"]


def options(line: str) -> dict:
    """The settings that this command line makes."""
    command = typer.main.get_command(_build_app()).commands["simulate"]
    with command.make_context("simulate", shlex.split(line)) as context:
        return settings_of(context.params)


@pytest.mark.parametrize("longest", [2, 8])
def test_all_policies_are_played_in_one_run(longest):
    limits = f"--num-requests 3 --output-tokens 12 --max-draft-tokens {longest}"
    output = call(f"--batch 2 --policy all {limits}")
    names = {line.split()[0] for line in output.splitlines() if line.strip()}
    played = {
        name for name in names if name in all_policies(8) or name.startswith(("fixed:", "perfect-"))
    }
    assert played == {*all_policies(longest), "perfect-estimates", "perfect-outcomes"}


def test_a_model_without_a_usual_draft_model_can_do_without_one():
    line = "--model qwen-3-30b-a3b --batch 1 --num-requests 2 --policy goodput"
    call(f"{line} --drafter lookup")
    with pytest.raises(ValueError, match="has no usual draft model"):
        call(line)


def test_options_left_alone_are_the_defaults_of_the_record():
    assert Scenario(**options("--batch 4")) == Scenario(batch=4)


def test_options_that_people_write_otherwise_than_the_record_holds_them():
    targets = "--tpot-target-ms 20,50 --ttft-target-ms 100"
    line = f"--trace a.csv {targets} --throttle 60:1.3 --profile no-context"
    assert Scenario(**options(line)) == Scenario(
        trace="a.csv",
        tpot_targets=(0.02, 0.05),
        ttft_target=0.1,
        throttle=((60.0, 1.3),),
        profile="no-context",
    )


def test_the_commands_are_made_without_what_takes_time():
    program = (
        "import sys; from smartspec.cli.main import _build_app; _build_app(); print('numpy' in "
        "sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
        == "False\n"
    )


def saved_policies(path) -> list[tuple[str, int]]:
    return [(run["settings"]["policy"], run["settings"]["seed"]) for run in read_json(path)["runs"]]


def test_files_are_written_before_anything_is_printed(tmp_path, monkeypatch):
    saved = tmp_path / "runs.json"

    def print_to_a_closed_pipe(*_):
        raise BrokenPipeError

    monkeypatch.setattr("smartspec.cli.simulate._print", print_to_a_closed_pipe)
    invoked(f"--batch 4 --policy off --output {saved}")
    assert saved_policies(saved) == [("off", 0), ("off", 1)]


def test_the_table_is_printed_even_if_a_file_cannot_be_written(tmp_path, monkeypatch):
    def fill_the_disk(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("smartspec.bench.report.write_json", fill_the_disk)
    result = invoked(f"--batch 4 --policy off --output {tmp_path / 'runs.json'}")
    assert isinstance(result.exception, OSError) and len(table(result.output)) == 1


def test_an_interrupt_while_a_run_is_set_up_keeps_the_runs_before(tmp_path, monkeypatch):
    make_engine, saved = simulation.make_engine, tmp_path / "runs.json"

    def interrupted(scenario):
        if scenario.policy == "fixed:2":
            raise KeyboardInterrupt
        return make_engine(scenario)

    monkeypatch.setattr(simulation, "make_engine", interrupted)
    output = call(f"--batch 4 --policy off,fixed:2 --output {saved}", code=130)
    assert policies_in(output) == ["off"] and saved_policies(saved) == [("off", 0)]
    assert "runs played to their end: 1 of 4" in output


def test_a_run_that_was_cut_short_stands_for_itself(tmp_path, monkeypatch):
    serve, saved = VirtualEngine.serve, tmp_path / "runs.json"

    def interrupt(run):
        raise KeyboardInterrupt

    played = []

    def serve_until_an_interrupt(engine, traffic, run):
        serve(engine, traffic, run, **{"on_finished": interrupt} if played else {})
        played.append(run)

    monkeypatch.setattr(VirtualEngine, "serve", serve_until_an_interrupt)
    output = call(f"--batch 4 --policy off --output {saved}", code=130)
    assert "off (interrupted)" in output and "interrupted: off with seed 1 has" in output
    assert "runs played to their end: 1 of 2" in output
    assert saved_policies(saved) == [("off", 0), ("off", 1)]


def simulate_or_die(scenario):
    if scenario.policy == "fixed:2":
        os.kill(os.getpid(), signal.SIGKILL)
    return simulation.SimulationResult(scenario, None, None, 0.0)


def test_a_killed_process_ends_the_command_with_a_line(monkeypatch):
    monkeypatch.setattr(simulation, "simulate", simulate_or_die)
    output = call("--batch 4 --policy fixed:2 --processes 9", code=1)
    assert "error: a process was killed" in output


def test_a_killed_process_keeps_the_runs_before(monkeypatch):
    monkeypatch.setattr(simulation, "simulate", simulate_or_die)
    scenarios = [Scenario(policy=policy, batch=4) for policy in ("off", "fixed:2", "goodput")]
    runs = in_processes(scenarios, 1)
    assert next(runs)[1].scenario.policy == "off"
    with pytest.raises(BrokenProcessPool):
        next(runs)


def test_the_notes_tell_how_much_the_table_leaves_out():
    output = call("--batch 4 --num-requests 40 --kv-tokens 600 --policy off,fixed:2")
    notes = " ".join(output.rpartition("simulated row steps")[2].split())
    total = int(re.search(r"refused, and not in the table: (\d+) of 160 requests", notes)[1])
    by_policy = re.search(r"\(off (\d+) of 80, fixed:2 (\d+) of 80\)", notes)
    assert total == sum(map(int, by_policy.groups()))
    assert total == sum(int(count) for count in re.findall(r"(\d+) refused", notes))


def test_a_run_without_a_request_says_so():
    output = call("--rate 1 --seconds 1e-5 --policy off")
    assert "no request arrived: give more --seconds" in output


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("here", "--output '.*here' is a folder"),
        ("nowhere/runs.json", "--output .*nowhere/runs.json: there is no folder"),
        ("x" * 300, "--output .* cannot be written .File name too long"),
    ],
)
def test_files_that_cannot_be_written_are_found_before_a_run(tmp_path, monkeypatch, path, message):
    monkeypatch.setattr(simulation, "simulate", lambda *_: pytest.fail("played"))
    (tmp_path / "here").mkdir()
    with pytest.raises(ValueError, match=message):
        call(f"--batch 4 --policy off --output {tmp_path / path}")
    assert [found.name for found in tmp_path.iterdir()] == ["here"]


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ("off,goodput,gooodput", "unknown policy 'gooodput'"),
        ("off,fixed:9", "'fixed:9' needs more than the 8"),
    ],
)
def test_no_policy_is_played_before_all_names_are_checked(monkeypatch, policies, message):
    monkeypatch.setattr("smartspec.sim.simulation.simulate", lambda *_: pytest.fail("played"))
    with pytest.raises(ValueError, match=message):
        call(f"--batch 4 --policy {policies}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--batch 2 --profile wrong", "--profile 'wrong' is not a number"),
        (
            "--batch 2 --profile 1e300",
            "profile must be at least 1e-06 and at most 1000000, got 1e+300",
        ),
        ("--batch 2 --throttle 60", "--throttle '60' is not a second and a factor, like 60:1.3"),
        ("--batch 2 --throttle 1:inf", "the factor of throttle must be at least"),
        ("--batch 2 --throttle nan:2", "the second of throttle must be at least"),
        ("--batch 2 --acceptance '0.8>0.4@nan'", "acceptance '0.8>0.4@nan'"),
        (
            "--batch 2 --drafter lookup --draft-model llama-3.2-1b",
            "draft_model llama-3.2-1b is not",
        ),
        ("--rate 2 --time-scale 3", "time_scale 3 is for a trace, and there is none"),
        ("--rate 1e-308", "request rate must be a positive number"),
        ("--batch 2 --acceptance none.jsonl", "cannot read the decision log none.jsonl"),
        ("--batch 2 --card none.json", "cannot be read"),
        (f"--batch 2 --card {CARD} --hardware a40", "has the step times"),
    ],
)
def test_bad_input_is_named(line, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(line)


def test_a_card_is_played(tmp_path):
    """Its step times and acceptance: drafts of the H100's card pay for a few requests."""
    assert CARD.is_file()
    saved = tmp_path / "runs.json"
    output = call(f"--card {CARD} --batch 4 --policy off,fixed:3 --output {saved}")
    runs = read_json(saved)["runs"]
    assert {run["settings"]["drafter"] for run in runs} == {"model"}
    means = {row[0]: float(row[1]) for row in table(output)}
    assert means["fixed:3"] < means["off"]
