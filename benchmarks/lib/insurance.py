"""Cases in which a decision goes wrong that is made by estimates alone: something changes, is not
as profiled, or never pays. All are simulated without recorded traffic; each is data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from time import thread_time

from lib.trace_pages import table
from lib.trace_scenarios import ACCEPTANCE, as_played_by
from lib.trace_tables import commit
from smartspec.cli.runs import in_processes
from smartspec.sim.controller_time import measured_controller_seconds
from smartspec.sim.scenario import Scenario
from smartspec.sim.world.step_time import ControllerSeconds

PAGE = """# Where estimates alone go wrong

    {command}

Commit {commit}, {date}, machine: simulated; 8B with an EAGLE head on an H100 where
nothing else is said. Each case keeps so many requests under way. The controller's own time is
{charged}. Mean latency, and its ratios to that under other policies: above 1 is slower.
The case that is worst beside the best of `off`, `fixed:1` and `fixed:3` comes first.

{rows}

## Cases

    python benchmarks/policies.py insurance --cases changes

{cases}
"""
REFERENCES = ("off", "fixed:1", "fixed:3", "goodput")
_FALLS = "0.85>0.3@8>0.85@16>0.3@24>0.85@32"
_1B = {"draft_model": "llama-3.2-1b"}
_70B = {"model": "70b", "tensor_parallel": 4}
_SEARCHES = {"drafter": "lookup", "acceptance": "0.3", "found_share": 0.3}


@dataclass(frozen=True)
class Case:
    """search_seconds: what a query of the drafters takes of a step, beside the controller."""

    about: str
    scenario: Scenario
    search_seconds: float = 0.0


def _closed(batch: int, num_requests: int, acceptance: str = ACCEPTANCE, **settings) -> Scenario:
    return Scenario(batch=batch, num_requests=num_requests, acceptance=acceptance, **settings)


CASES = {
    "changes": Case(
        "128 requests; acceptance of all falls from 0.85 to 0.3 and returns, every 8 s",
        _closed(128, 1500, _FALLS),
    ),
    "profile x3": Case(
        "48 requests; all profiled times are 3 x too long",
        _closed(48, 400, profile=3.0),
    ),
    "profile /3": Case("the same, 3 x too short", _closed(48, 400, profile=1 / 3)),
    "drafts x3": Case(
        "8 requests, a 1B draft model; profiled times of its passes alone are 3 x too long",
        _closed(8, 150, "0.5/8/2", profile="drafts:3", **_1B),
    ),
    "drafts /3": Case(
        "the same, 3 x too short",
        _closed(8, 150, "0.5/8/2", profile=f"drafts:{1 / 3}", **_1B),
    ),
    "slow minute": Case(
        "70B, 16 requests; passes take 2 x as long from second 20 to 80",
        _closed(16, 500, throttle=((20.0, 2.0), (80.0, 1.0)), **_70B),
    ),
    "prefills": Case(
        "32 requests with prompts of 1,000 and answers of 20 tokens",
        _closed(32, 1000, prompt_tokens=1000, output_tokens=20),
    ),
    "burst": Case("128 prompts at once, and no more", _closed(128, 128)),
    "search": Case(
        "16 requests; a query of the drafter takes 2 ms, and few drafts are found and right",
        _closed(16, 300, **_SEARCHES),
        search_seconds=0.002,
    ),
}


@dataclass(frozen=True)
class Row:
    """relative: mean latency to that of each reference."""

    case: str
    policy: str
    mean_seconds: float
    relative: dict[str, float]

    @property
    def of_best(self) -> float:
        """To the best reference that needs no estimates."""
        return max(self.relative[name] for name in REFERENCES if name != "goodput")


def cases_of(names: str) -> dict[str, Case]:
    """Those of these names, separated by commas; all of "". ValueError for another name."""
    wanted = [name.strip() for name in names.split(",")] if names else list(CASES)
    if unknown := [name for name in wanted if name not in CASES]:
        raise ValueError(f"no case is {unknown[0]!r}: use {', '.join(CASES)}")
    return {name: CASES[name] for name in wanted}


def play_cases(
    cases: dict[str, Case],
    policies: Sequence[str],
    seeds: int,
    processes: int,
    is_charged: bool,
) -> list[Row]:
    """The worst row first, measured by the best of off and the fixed lengths. is_charged: steps
    take the controller's own time, too, as measured on this machine."""
    players = list(dict.fromkeys([*REFERENCES, *policies]))
    keys = [(name, player) for name in cases for player in players]
    played = {key: _played(cases[key[0]], key[1], is_charged) for key in keys}
    runs = [(key, seed) for key in keys for seed in range(seeds)]
    scenarios = [replace(played[key], seed=seed) for key, seed in runs]
    latencies: dict[tuple[str, str], list[float]] = {key: [] for key in keys}
    for number, outcome in in_processes(scenarios, processes):
        records = outcome.run.records
        latencies[runs[number][0]] += [record.end_to_end_seconds for record in records]
    means = {key: sum(found) / len(found) for key, found in latencies.items()}
    rows = [_row(name, policy, means) for name in cases for policy in policies]
    return sorted(rows, key=lambda row: -row.of_best)


def rows_table(rows: list[Row]) -> str:
    heads = ["case", "policy", "mean latency, s", *(f"of `{name}`" for name in REFERENCES)]
    figures = [(row.mean_seconds, *row.relative.values()) for row in rows]
    cells = [
        [row.case, f"`{row.policy}`", *(f"{value:.3f}" for value in values)]
        for row, values in zip(rows, figures, strict=True)
    ]
    return table(heads, cells)


def insurance_page(
    rows: list[Row],
    cases: dict[str, Case],
    command: str,
    is_charged: bool,
) -> str:
    return PAGE.format(
        command=command,
        commit=commit(),
        date=date.today().isoformat(),
        charged="charged, as measured on this machine" if is_charged else "not charged",
        rows=rows_table(rows),
        cases=table(["case", "what happens"], [[name, case.about] for name, case in cases.items()]),
    )


def _row(case: str, policy: str, means: dict[tuple[str, str], float]) -> Row:
    mean = means[case, policy]
    return Row(case, policy, mean, {name: mean / means[case, name] for name in REFERENCES})


def _played(case: Case, player: str, is_charged: bool) -> Scenario:
    """A step in which drafters are queried takes the search and, if it counts, the controller."""
    scenario = as_played_by(case.scenario, player)
    own: ControllerSeconds = ((1, 0.0),)
    if is_charged:
        own = measured_controller_seconds(scenario, thread_time)
    search = 0.0 if player == "off" else case.search_seconds
    charged = tuple((size, seconds + search) for size, seconds in own)
    return replace(scenario, controller_seconds=charged)
