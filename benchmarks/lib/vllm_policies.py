"""Policies in vLLM on one machine, interleaved: servers, rounds, results, and the table of them."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.table import Table

from lib.commands import console_of, read_kept, table_of
from lib.servers import ServerCommand, running, server_command
from smartspec.bench.client import LoadRequest, Target
from smartspec.bench.load import LoadPlan
from smartspec.bench.report import write_json
from smartspec.bench.run import measure
from smartspec.control.log.recorded_log import RecordedLog
from smartspec.observation.length_tables import vllm_config
from smartspec.sim.length_table import length_table
from smartspec.sim.scenario import Scenario
from smartspec.workload.prompts import Prompt, draw_prompts

LONGEST = 5
NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
FEWEST_REQUESTS = 4  # of a round
KV_BLOCK = 128  # tokens, vLLM's own choice on CPUs
OURS = "smartspec"
IN_SCHEDULER = "smartspec:scheduler"  # with drafts of our own, made in the scheduler
ALL_OURS = (OURS, IN_SCHEDULER)
OWN_DRAFTS = {"model": "smartspec.vllm_plugin.proposer.NoDrafts"}
STARTS_AT_ONCE = 2  # a start of vLLM computes on one core, mostly
POLICIES = f"off,fixed:1,fixed:3,fixed:5,dynamic-sd,{OURS}"
LOW, HIGH, NUM_DRAWS = 5, 95, 2000  # percentiles of the interval
console = console_of(150)


@dataclass(frozen=True)
class Cell:
    """Requests of a task, so many at a time."""

    task: str
    concurrency: int

    @property
    def key(self) -> str:
        return f"{self.task} {self.concurrency}"

    def requests(
        self, prompts: list[Prompt], round_number: int, max_tokens: int, waves: float
    ) -> list[LoadRequest]:
        """Of a round: waves times as many as run at a time. None finds prefixes or answers of
        another in the server, also where a prompt comes again: there are more requests than
        prompts."""
        rng = np.random.default_rng([self.concurrency, round_number + 2])
        drawn = draw_prompts(prompts, max(FEWEST_REQUESTS, round(waves * self.concurrency)), rng)
        lengths = rng.integers(
            max_tokens // 2, 3 * max_tokens // 2, size=len(drawn), endpoint=True
        ).tolist()
        return [
            LoadRequest(
                f"{p.prompt_id} {i}",
                self.task,
                p.text,
                n,
                cache_salt=f"{self.key} {round_number} {i}",
            )
            for i, (p, n) in enumerate(zip(drawn, lengths, strict=True))
        ]


@dataclass
class Results:
    """Kept in a file. rounds: by cell, of each round, by policy: tokens per second and answers.
    table: Dynamic SD's."""

    path: Path
    settings: dict
    table: dict | None = None
    rounds: dict[str, list[dict]] = field(default_factory=dict)

    @staticmethod
    def read(path: Path, settings: dict) -> "Results":
        """Those that are there, or none. ValueError if they were measured otherwise."""
        kept = read_kept(path, settings, table=None, rounds={})
        return Results(path, settings, kept["table"], kept["rounds"])

    def write(self) -> None:
        write_json(
            self.path, {"settings": self.settings, "table": self.table, "rounds": self.rounds}
        )

    def add(self, cell: Cell, results: dict) -> None:
        """A round of a cell, of all policies."""
        self.rounds.setdefault(cell.key, []).append(results)
        self.write()

    def speeds(self, cell: Cell) -> np.ndarray:
        """Tokens per second by round and policy: float [rounds, policies]."""
        policies, rounds = self.settings["policies"], self.rounds.get(cell.key, [])
        return np.array(
            [[one[p]["tokens_per_second"] for p in policies] for one in rounds]
        ).reshape(-1, len(policies))


def policy_command(
    name: str, vllm: ServerCommand, folder: Path, table: dict | None, method: dict = NGRAM
) -> ServerCommand:
    """The server of a policy. folder: where SmartSpec keeps what it learns; table: of Dynamic SD;
    method: what drafts, as in vLLM's speculative configuration."""
    if name == "off":
        return vllm
    drafts = method | {"num_speculative_tokens": LONGEST}
    options = []
    if name.startswith("fixed:"):
        drafts["num_speculative_tokens"] = int(name.removeprefix("fixed:"))
    elif name == "dynamic-sd":
        drafts |= table or {}
    elif is_ours(name):
        settings = {"smartspec": {"cache": str(folder.absolute())}}
        if table is None:
            settings["smartspec"]["decision_log"] = str((folder / "learned.jsonl").absolute())
        options = [
            "--scheduler-cls",
            "smartspec.vllm_plugin.Scheduler",
            "--additional-config",
            literal(settings),
        ]
        if name == IN_SCHEDULER:
            drafts = OWN_DRAFTS | {"num_speculative_tokens": LONGEST}
            options += ["--distributed-executor-backend", "smartspec.vllm_plugin.executor.Executor"]
    else:
        raise ValueError(
            f"unknown policy {name!r}: use off, fixed:K, dynamic-sd, {', '.join(ALL_OURS)}"
        )
    return ServerCommand(
        [*vllm.arguments, "--speculative-config", literal(drafts), *options], vllm.environment
    )


def is_ours(name: str) -> bool:
    return name in ALL_OURS


def vllm_command(model_path: str, vllm_python: str, kv_tokens: int) -> ServerCommand:
    """vLLM with KV for so many tokens: several servers share the memory of one machine."""
    vllm = server_command("vllm", model_path, vllm_python)
    num_blocks = str(-(-kv_tokens // KV_BLOCK))
    options = ["--block-size", str(KV_BLOCK), "--num-gpu-blocks-override", num_blocks]
    # On CPUs numba, which vLLM's ngram drafter uses, else takes OpenMP's threads from vLLM's
    # kernels: docs/vllm.md.
    return ServerCommand(
        [*vllm.arguments, *options], vllm.environment | {"NUMBA_THREADING_LAYER": "workqueue"}
    )


def literal(value: dict) -> str:
    """JSON whose braces are left alone when the port is filled in."""
    return json.dumps(value).replace("{", "{{").replace("}", "}}")


def learn(
    name: str,
    vllm: ServerCommand,
    folder: Path,
    rounds: dict[Cell, list[LoadRequest]],
    method: dict,
) -> dict:
    """Serve every cell once with a policy of SmartSpec's, and make a table from the step times and
    the acceptance seen."""
    (folder / "learned.jsonl").unlink(missing_ok=True)  # of a start that was ended
    with running(policy_command(name, vllm, folder, None, method), folder / "learn.log") as target:
        for cell, requests in rounds.items():
            say(f"learning step times: {cell.key}")
            measure(target, LoadPlan(requests, concurrency=cell.concurrency))
    newest = max((folder / "vllm").glob("*.json"), key=lambda path: path.stat().st_mtime)
    curves = folder / "curves.json"
    curves.write_text(json.dumps(json.loads(newest.read_text())["cost_model"]))
    steps = [record.outcome for record in RecordedLog(folder / "learned.jsonl")]
    acceptance = sum(s.accepted.sum() for s in steps) / max(sum(s.tested.sum() for s in steps), 1)
    drafter = "lookup" if method == NGRAM else "model"
    scenario = Scenario(hardware=str(curves), drafter=drafter, batch=1, max_draft_tokens=LONGEST)
    table = vllm_config(length_table(scenario, float(acceptance)))
    say(f"acceptance {acceptance:.2f}, table {table}")
    return table


def start(commands: dict[str, ServerCommand], folder: Path, stack: ExitStack) -> dict[str, Target]:
    """All servers, warm. They end with the stack."""

    def start_one(name: str) -> Target:
        say(f"starting {name}")
        target = stack.enter_context(
            running(commands[name], folder / f"{name.replace(':', '-')}.log")
        )
        measure(target, LoadPlan([LoadRequest("warm", "warm", "Say hello.", 16)], concurrency=1))
        return target

    with ThreadPoolExecutor(STARTS_AT_ONCE) as pool:
        return dict(zip(commands, pool.map(start_one, commands), strict=True))


def run_round(
    targets: dict[str, Target], cell: Cell, requests: list[LoadRequest], first: int
) -> dict:
    """Tokens per second and answers by policy, beginning with the policy of that number. ValueError
    on an error."""
    names, results = list(targets), {}
    for name in [*names[first % len(names) :], *names[: first % len(names)]]:
        records, summary = measure(targets[name], LoadPlan(requests, concurrency=cell.concurrency))
        if summary.num_errors or summary.num_unfinished:
            raise ValueError(
                f"{name}, {cell.key}: {summary.num_errors} of {len(requests)} requests failed; see "
                "its log"
            )
        texts = {record.prompt_id: record.text for record in records}
        results[name] = {"tokens_per_second": summary.output_tokens_per_second, "texts": texts}
    return results


def remaining(results: Results, cells: list[Cell], num_rounds: int) -> Iterator[tuple[int, Cell]]:
    """Rounds that are not there yet, all cells of a round before the next."""
    for number in range(num_rounds):
        yield from (
            (number, cell) for cell in cells if len(results.rounds.get(cell.key, [])) <= number
        )


def ratio(speeds: np.ndarray, ours: int, others: list[int]) -> tuple[float, float, float]:
    """Of our policy's geometric mean to the best other's, and the ends of its interval. speeds:
    float [rounds, policies]."""
    logs = np.log(speeds)
    rng = np.random.default_rng(0)
    draws = logs[rng.integers(len(logs), size=(NUM_DRAWS, len(logs)))].mean(axis=1)
    drawn = np.exp(draws[:, ours] - draws[:, others].max(axis=1))
    means = logs.mean(axis=0)
    low, high = np.percentile(drawn, (LOW, HIGH))
    return float(np.exp(means[ours] - means[others].max())), float(low), float(high)


def results_table(results: Results, cells: list[Cell]) -> Table:
    """A line for each cell, the worst ratio of the last policy first."""
    policies = results.settings["policies"]
    title = f"Tokens/s in vLLM; {policies[-1]} against the best other, and against off"
    columns = ("task", "c", *policies, "of best", "of off", "rounds", "same text")
    ours = len(policies) - 1
    others = [number for number in range(len(policies)) if number != ours]
    rows = []
    for cell in (cell for cell in cells if cell.key in results.rounds):
        speeds, rounds = results.speeds(cell), results.rounds[cell.key]
        of_best, of_off = (
            ratio(speeds, ours, group) for group in (others, [policies.index("off")])
        )
        same = sum(one[p]["texts"] == one["off"]["texts"] for one in rounds for p in policies)
        means = [f"{value:.1f}" for value in np.exp(np.log(speeds).mean(axis=0))]
        ratios = [f"{value:.2f} ({low:.2f}-{high:.2f})" for value, low, high in (of_best, of_off)]
        counts = [str(len(rounds)), f"{same}/{len(rounds) * len(policies)}"]
        rows.append((of_best[0], [cell.task, cell.concurrency, *means, *ratios, *counts]))
    return table_of(title, columns, [row for _, row in sorted(rows)])


def say(text: str) -> None:
    console.print(f"{time.strftime('%H:%M:%S')} {text}", markup=False, highlight=False)


def compare(
    results: Results,
    cells: list[Cell],
    rounds: int,
    prompts: dict[str, list[Prompt]],
    vllm: ServerCommand,
    method: dict,
) -> None:
    """Measure the rounds that the results do not have, and print the table."""
    end_servers_on_sigterm()
    settings, folder = results.settings, results.path.parent
    todo, names = list(remaining(results, cells, rounds)), settings["policies"]

    def requests_of(cell: Cell, number: int, waves: float) -> list[LoadRequest]:
        return cell.requests(prompts[cell.task], number, settings["max_tokens"], waves)

    if todo and results.table is None:
        learned = {cell: requests_of(cell, -1, waves=1) for cell in cells}
        # the table is that of OURS, where that is measured
        for name in sorted(filter(is_ours, names), reverse=True):
            results.table = learn(name, vllm, folder, learned, method)
        results.write()
    with servers_of(names if todo else [], vllm, folder, results.table, method) as targets:
        for done, (number, cell) in enumerate(todo):
            first = number + cells.index(cell)
            results.add(
                cell, run_round(targets, cell, requests_of(cell, number, settings["waves"]), first)
            )
            speeds = zip(names, results.speeds(cell)[-1], strict=True)
            figures = " ".join(f"{name} {value:.1f}" for name, value in speeds)
            say(f"{done + 1} of {len(todo)}, round {number + 1}, {cell.key}: {figures}")
    console.print(results_table(results, cells))


def end_servers_on_sigterm() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


@contextmanager
def servers_of(
    names: list[str], vllm: ServerCommand, folder: Path, table: dict | None, method: dict = NGRAM
) -> Iterator[dict[str, Target]]:
    """Warm servers of these policies while the block runs."""
    commands = {name: policy_command(name, vllm, folder, table, method) for name in names}
    with ExitStack() as stack:
        yield start(commands, folder, stack)
