"""Cells on a GPU: arguments, jobs in processes, what is counted, tables and the figure."""

import json
import subprocess
import sys
import time
from pathlib import Path

import gpu_cells
import pytest
from lib.gpu import rates
from lib.gpu.client import Client
from lib.gpu.plan import Plan
from lib.gpu.processes import run_job
from lib.gpu.results import Results
from lib.gpu.tables import markdown, plot_speeds, read_cells

ROOT = Path(__file__).parents[2]
SPEEDS = {
    "off": 100.0, "stock:0": 95.0, "stock:1": 150.0, "stock:3": 200.0, "fixed:3": 198.0,
    "goodput": 190.0,
}  # fmt: skip
CHANGE = {"drafted_before": 5, "drafted": 2.5, "steps_to_change": 12}


def cell(job: str, name: str, level: int, speed: float, note: str = "", **more) -> dict:
    return {"job": job, "cell": name, "level": level, "note": note, "tokens_per_s": speed} | more


@pytest.fixture
def file(tmp_path) -> Path:
    lines = [{"job": "", "vllm": "0.33.0"}]
    for level in (1, 16):
        for name, speed in SPEEDS.items():
            job, note = ("off", "") if name == "off" else ("eagle3", "0.5/0.85")
            lines.append(cell(job, name, level, speed * level, note))
        lines.append(cell("off-after", "off", level, 104.0 * level))
    lines += [
        cell("adaptive-stock", "stock", 4, 300.0, "0.85/0.85 to 0.3/0.3", **CHANGE),
        cell("adaptive", "goodput", 4, 330.0, "0.85/0.85 to 0.3/0.3", **CHANGE),
        cell("rollout", "goodput", 256, 4380.0, "0.5/0.5", at_once=True, p50_s=11.8, p99_s=37.7),
        {"job": "x", "exact": "eagle3", "policy": "fixed:3", "equal": 8, "of": 8, "accepted": 90},
    ]
    path = tmp_path / "gpu.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_the_table_sets_smartspec_beside_the_best_other_and_off(file):
    told = markdown(read_cells([file]))
    for line in (
        "eagle3, acceptance 0.5/0.85: tokens per second",
        "| 16 | 1,600, 1,664 | 3,168 | 1,520 | 2,400 | 3,200 | 3,040 | **0.950** | 1.863 |",
        "adaptive, acceptance 0.85/0.85 to 0.3/0.3",
        "| 4 | 300 | 330 | 1.100 |  |",
        "| adaptive | 4 | goodput | 0.85/0.85 to 0.3/0.3 | 5 | 2.5 | 12 |",
        "| 0.5/0.5 | 256 | goodput | 4,380.0 | 11.8 | 37.7 |",
        "| eagle3 | fixed:3 | 8 of 8 |  | 90 |",
    ):
        assert line in told
    assert "rollout, acceptance" not in told


def test_the_figure_is_drawn_where_all_curves_have_cells(file, tmp_path):
    plot_speeds(read_cells([file]), tmp_path / "made" / "a.png")
    assert (tmp_path / "made" / "a.png").read_bytes().startswith(b"\x89PNG")
    lines = [line for line in read_cells([file]) if line.get("cell") != "goodput"]
    with pytest.raises(ValueError, match="no number of requests has cells of off"):
        plot_speeds(lines, tmp_path / "b.png")


@pytest.mark.parametrize(
    "arguments, error",
    [
        ([], "name the bundle's folder with --bundle"),
        (["--bundle", "gone"], "gone/vllm.tar.xz does not exist: make it with"),
        (["--bundle", "gone", "--only", "of"], "unknown job of: use some of off, ngram"),
        (["--bundle", "gone", "--levels", "0,4"], "--levels 0,4: use numbers of 1 to 256"),
        (["--bundle", "gone", "--levels", "x"], "--levels x: use numbers of 1 to 256"),
        (["--bundle", "gone", "--settings", "{"], "--settings {: use a JSON object"),
        (["--bundle", "gone", "--settings", "[]"], "--settings []: use a JSON object"),
        (["table", "pyproject.toml"], "pyproject.toml holds no lines of JSON"),
        (["table", "gone.jsonl"], "gone.jsonl"),
        (["table"], "name files of results"),
    ],
)
def test_bad_arguments_have_one_line_that_names_them(arguments, error, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["gpu_cells.py", *arguments])
    with pytest.raises((ValueError, OSError)) as raised:
        gpu_cells.main()
    assert error in str(raised.value)


def test_an_error_ends_with_status_2(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_cells.py"), "--bundle", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (
        result.returncode == 2
        and result.stderr.startswith("error: ")
        and result.stderr.count("\n") == 1
    )


def test_every_job_has_a_limit_and_work():
    assert gpu_cells.names_of("") == list(gpu_cells.JOBS)
    assert all(
        callable(gpu_cells.job(name))
        for name in gpu_cells.JOBS | gpu_cells.RATE_JOBS | gpu_cells.MORE_JOBS
    )
    assert sum(gpu_cells.RATE_JOBS.values()) <= 530  # seconds, the default of --budget


def test_a_job_may_fail_or_hang_and_the_file_says_so(tmp_path):
    results = Results(tmp_path, "a")
    assert run_job("good", 30, results, lambda: results.add(cell="x", level=1))
    assert not run_job("bad", 30, results, lambda: 1 / 0)
    assert not run_job("slow", 0.2, results, lambda: time.sleep(60))
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    told = [line.get("problem", line.get("cell")) for line in lines]
    assert told == ["x", "bad", "slow was ended after 0 s"]
    assert "ZeroDivisionError" in lines[1]["error"]


class InstantClient(Client):
    """Without an engine: every request ends in the step after it was sent."""

    def __init__(self):
        super().__init__(None)
        self.sent: list[tuple[list[int], int, int]] = []

    def send(self, prompt: list[int], max_tokens: int, seed: int) -> str:
        self.sent.append((prompt, max_tokens, seed))
        self.alive[str(len(self.sent))] = []
        return str(len(self.sent))

    def step(self) -> None:
        self.done.update(self.alive)
        self.alive.clear()

    def drain(self) -> None:
        assert not self.alive


def test_an_open_loop_sends_the_same_requests_each_time_and_waits_for_all():
    client = InstantClient()
    first, again = (client.open_loop(rate=500.0, seconds=0.2) for _ in range(2))
    sent = client.sent
    assert len(first) == len(again) == len(sent) / 2
    assert sent[: len(first)] == sent[len(first) :]
    assert 70 < len(first) < 130 and min(first) >= 0.0


def test_latencies_by_rate_are_a_table_beside_off(tmp_path):
    results = Results(tmp_path, "rates-off")
    assert results.last("capacity") is None
    with pytest.raises(ValueError, match="run job rates-off first"):
        rates.run_policies(results, Plan(tmp_path, tmp_path))
    results.add(cell="off", level=256, note="", tokens_per_s=11_000.0)
    results.add(capacity=57.3)
    assert Results(tmp_path, "rates").last("capacity") == 57.3
    for policy, seconds in (("goodput", 2.0), ("off", 5.0), ("stock:3", 4.0)):
        results.add(
            arm=policy, rate=57.3, note="", requests=1146, mean_s=seconds, p99_s=2 * seconds
        )
    lines = markdown(read_cells([tmp_path / "gpu.jsonl"])).splitlines()
    stock = lines.index("| 57.3 | stock:3 | 1146 | 4.00 | 8.00 | 1.25 |")
    assert lines[stock + 1] == "| 57.3 | goodput | 1146 | 2.00 | 4.00 | 2.50 |"


def test_each_level_and_length_has_a_graph_and_the_table_names_all_lengths():
    plan = Plan(Path(), Path(), levels=(1, 16), lengths=(1, 3))
    assert plan.sizes() == [1, 2, 4, 16, 32, 64]
    assert set(plan.sizes()) <= set(plan.ragged_sizes())
    assert plan.table(8) == [[1, 1, 3], [2, 2, 1], [3, 8, 0]]
    sizes = Plan(Path(), Path(), levels=(256,), lengths=rates.LENGTHS).open_sizes()
    assert sizes[-1] == 4 * 256 and all(
        size % (1 + length) == 0 for size in sizes for length in (0, *rates.LENGTHS)
    )


def test_cells_that_were_not_seen_are_predicted(monkeypatch, capsys, tmp_path):
    recorded, card = str(ROOT / "docs/results/h100.jsonl"), tmp_path / "card.json"

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["gpu_cells.py", *arguments])
        return gpu_cells.main()

    assert call("observed", recorded, "--levels", "1,64") == 0
    assert "Of 22 cells that were not seen, 19 are within 5 %" in capsys.readouterr().out
    assert call("card", recorded, "-o", str(card)) == 0
    assert json.loads(card.read_text())["engine"] == "vllm"
    with pytest.raises(ValueError, match="no cell with a draft head has 3 requests"):
        call("observed", recorded, "--levels", "3")
