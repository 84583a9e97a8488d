"""Policies, and variants of goodput, on windows of recorded traffic: docs/results/ablation.md and
traces.md."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import thread_time

import typer
from rich.console import Console
from rich.progress import track

from lib.trace_scenarios import (
    ABLATION_CASES,
    ACCEPTANCE,
    BASELINES,
    POLICIES,
    TRACE_CASES,
    VARIANTS,
    WHOLE,
    Case,
    Job,
    as_played_by,
    write_windows,
)
from lib.trace_statistics import STATISTICS, Windows, compared, pooled, summary
from smartspec.cli.runs import in_processes
from smartspec.core.processor import processor_name
from smartspec.sim.controller_time import measured_controller_seconds
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import SimulationResult

NUM_MEASUREMENTS = 2  # of the controller's time; the fastest counts, by number of requests
SHOWN_BATCH = 16
console = Console(stderr=True)


class Runs:
    """Finished runs and measured controller times, one JSON line each: appended at once, found
    again by key."""

    def __init__(self, path: Path, half: str):
        self._path, self._half, self._commit = path, half, commit()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._found = {entry["key"]: entry for entry in map(json.loads, lines)}

    def add(self, key: str, **values: object) -> None:
        entry = {"key": key, "commit": self._commit} | values
        self._found[key] = entry
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def key(self, job: Job) -> str:
        return f"{self._half} | {job.key}"

    def has(self, key: str) -> bool:
        return key in self._found

    def latencies(self, case: str, player: str, num_windows: int) -> Windows:
        """Seconds of every request, by window."""
        keys = [f"{self._half} | {case} | {player} | {window}" for window in range(num_windows)]
        return [self._found[key]["latencies"] for key in keys]

    def controller_seconds(self, drafter: str, player: str) -> tuple[tuple[int, float], ...]:
        """What a step of that many requests is charged."""
        return tuple(map(tuple, self._found[_time_key(drafter, player)]["controller_seconds"]))

    def controller_ms(self, player: str) -> float:
        """Of a step of SHOWN_BATCH requests with a draft model."""
        return round(1e3 * dict(self.controller_seconds("model", player))[SHOWN_BATCH], 2)

    @property
    def commits(self) -> str:
        return ", ".join(sorted({entry["commit"] for entry in self._found.values()}))


def finished_runs(jobs: list[Job], path: Path, traces: Path, half: str, processes: int) -> Runs:
    """All runs in the file of that path, once those of the jobs are there. typer.Exit after
    Ctrl-C."""
    known = Runs(path, half)
    try:
        measure_controllers(jobs, known)
        play(jobs, known, traces, half, processes)
    except KeyboardInterrupt:
        console.print(f"interrupted; run the same command to go on from {path}")
        raise typer.Exit(130) from None
    return known


def about(runs: Runs, table: str, half: str, options: str = "") -> dict:
    """What the page of a table says of itself: its command, commit and machine."""
    command = f"python benchmarks/policies.py {table} --traces FOLDER --half {half}{options}"
    return {"commit": runs.commits, "machine": _machine(), "half": half, "command": command}


def measure_controllers(jobs: list[Job], runs: Runs) -> None:
    """Once for every player and drafter, before anything is simulated."""
    pairs = sorted({(job.case.drafter, job.player) for job in jobs})
    missing = [pair for pair in pairs if not runs.has(_time_key(*pair))]
    found: dict[tuple[str, str], list[tuple[tuple[int, float], ...]]] = {
        pair: [] for pair in missing
    }
    # a slow minute meets all of them alike
    rounds = [pair for _ in range(NUM_MEASUREMENTS) for pair in missing]
    for drafter, player in track(rounds, "measuring the controller", console=console):
        scenario = as_played_by(Scenario(batch=1, acceptance=ACCEPTANCE, drafter=drafter), player)
        found[drafter, player].append(measured_controller_seconds(scenario, thread_time))
    for pair, measured in found.items():
        fastest = [
            (times[0][0], min(seconds for _, seconds in times))
            for times in zip(*measured, strict=True)
        ]
        runs.add(_time_key(*pair), controller_seconds=fastest)


def play(jobs: list[Job], runs: Runs, traces: Path, half: str, processes: int) -> None:
    """Simulate those that have not been."""
    missing = [job for job in jobs if not runs.has(runs.key(job))]
    if not missing:
        return
    with tempfile.TemporaryDirectory() as folder:
        write_windows(missing, traces, half, Path(folder))
        scenarios = [
            replace(
                job.scenario(Path(folder), half),
                controller_seconds=runs.controller_seconds(job.case.drafter, job.player),
            )
            for job in missing
        ]
        for number, outcome in in_processes(scenarios, processes):
            runs.add(runs.key(missing[number]), latencies=_latencies(outcome))


def ablation(runs: Runs, num_windows: int) -> dict:
    """Every variant against the whole controller, by case and pooled."""
    whole = {case.name: runs.latencies(case.name, WHOLE, num_windows) for case in ABLATION_CASES}
    variants = [variant for variant in VARIANTS if variant != WHOLE]
    ratios = {
        (variant, case): compared(runs.latencies(case, variant, num_windows), whole[case])
        for variant in variants
        for case in whole
    }
    rows = [
        {"variant": variant, "case": case} | found.summary()
        for (variant, case), found in ratios.items()
    ]
    over_cases = [
        {"variant": variant} | pooled([ratios[variant, case] for case in whole]).summary()
        for variant in variants
    ]
    return {
        "windows": num_windows,
        "controller_ms": {variant: runs.controller_ms(variant) for variant in VARIANTS},
        "pooled": over_cases,
        "whole": [{"case": case} | summary(latencies) for case, latencies in whole.items()],
        "rows": rows,
    }


def trace_table(runs: Runs, num_windows: int, cases: Iterable[Case] = TRACE_CASES) -> dict:
    """Latency of every policy, and goodput against off and the best baseline."""
    players = {policy: WHOLE if policy == "goodput" else policy for policy in POLICIES}
    seconds, against = {}, []
    for case in cases:
        latencies = {
            policy: runs.latencies(case.name, player, num_windows)
            for policy, player in players.items()
        }
        seconds[case.name] = {policy: summary(of_policy) for policy, of_policy in latencies.items()}
        changes = {p: compared(latencies["goodput"], latencies[p]).summary() for p in BASELINES}
        best = {
            name: min(BASELINES, key=lambda p: seconds[case.name][p][name]) for name in STATISTICS
        }
        against.append(
            {
                "case": case.name,
                "off": changes["off"],
                "best": {
                    name: {"policy": p, "change": changes[p][name]} for name, p in best.items()
                },
            }
        )
    controller_ms = {policy: runs.controller_ms(player) for policy, player in players.items()}
    return {
        "windows": num_windows,
        "controller_ms": controller_ms,
        "against": against,
        "seconds": seconds,
    }


def write(folder: Path, name: str, data: dict, page: str) -> None:
    """NAME.json and NAME.md, the page made of it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
    console.print(f"{folder / name}.md")


def _latencies(outcome: SimulationResult) -> list[float]:
    records = sorted(outcome.run.records, key=lambda record: int(record.prompt_id))
    if refused := [record for record in records if record.error is not None]:
        raise RuntimeError(
            f"{outcome.scenario.policy}: request {refused[0].prompt_id} failed: {refused[0].error}"
        )
    return [round(record.end_to_end_seconds, 5) for record in records]


def _time_key(drafter: str, player: str) -> str:
    return f"controller time | {drafter} | {player}"


def commit() -> str:
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--exclude=*",
        "--abbrev=7",
    ]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def _machine() -> str:
    return f"{processor_name()}, {os.cpu_count()} cores"
