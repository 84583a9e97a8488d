"""What the tables of recorded traffic simulate: windows of recorded traffic, machines, variants of
goodput."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from smartspec.control.goodput.policy import GoodputSettings
from smartspec.core.policy_names import TOLD, all_policies
from smartspec.sim.scenario import Scenario
from smartspec.workload.arrivals import TRACE_COLUMNS, read_trace

ACCEPTANCE = "0.8/8/2,0.6/8/2,0.4/8/2"
HALVES = ("choose", "report")
CONVERSATION, CODE, MOONCAKE, BURST = (
    f"{name}.csv"
    for name in ("azure_2023_conv", "azure_2023_code", "mooncake_conversation", "burstgpt_1_head")
)
TRACES = (CONVERSATION, CODE, MOONCAKE, BURST)
# windows begin at multiples of it, modulo 1: evenly spread, however many there are
SPREAD = (5**0.5 - 1) / 2

WHOLE, CORE = "whole", "core"
_OFF: dict[str, dict] = {
    "fair weights": {"fairness": 0.0},
    "confidence": {"uses_confidence": False},
    "guard, trials and paid queries": {"share": 0.0},
}
VARIANTS: dict[str, GoodputSettings] = {
    WHOLE: GoodputSettings(),
    **{f"without {mechanism}": GoodputSettings(**values) for mechanism, values in _OFF.items()},
    CORE: GoodputSettings(
        **{name: value for values in _OFF.values() for name, value in values.items()}
    ),
}
OURS = ("goodput",)
BASELINES = tuple(name for name in all_policies(max_draft_tokens=8) if name not in OURS)
POLICIES = (*OURS, *BASELINES, *TOLD)


@dataclass(frozen=True)
class Case:
    """A machine and its traffic. trace: a file's name, None for a closed loop. num_requests: of a
    window."""

    name: str
    scenario: Scenario
    trace: str | None
    num_requests: int

    @property
    def drafter(self) -> str:
        return self.scenario.drafter


@dataclass(frozen=True)
class Job:
    """One run to come: a case's window under a policy or a variant of goodput."""

    case: Case
    player: str
    window: int

    @property
    def key(self) -> str:
        return f"{self.case.name} | {self.player} | {self.window}"

    def scenario(self, windows: Path, half: str) -> Scenario:
        """What is simulated. windows: folder of what write_windows wrote."""
        played = as_played_by(self.case.scenario, self.player)
        # Halves meet other random numbers too: a closed loop has no other halves.
        played = replace(played, seed=self.window + 1000 * HALVES.index(half))
        if self.case.trace is None:
            return replace(played, num_requests=self.case.num_requests)
        return replace(played, batch=None, trace=str(windows / window_name(self.case, self.window)))


def as_played_by(scenario: Scenario, player: str) -> Scenario:
    """player: a variant of goodput or a policy."""
    if player in VARIANTS:
        return replace(scenario, policy="goodput", goodput=VARIANTS[player])
    return replace(scenario, policy=player)


def _case(
    name: str, trace: str | None, time_scale: float, num_requests: int = 250, **settings
) -> Case:
    if trace is None:
        return Case(name, Scenario(batch=48, acceptance=ACCEPTANCE, **settings), None, num_requests)
    scenario = Scenario(trace=trace, time_scale=time_scale, acceptance=ACCEPTANCE, **settings)
    return Case(f"{name} x{time_scale:g}", scenario, trace, num_requests)


_70B = {"model": "70b", "tensor_parallel": 4}
_BIG_AND_SMALL = (
    _case("8B, Azure conversations", CONVERSATION, 6),
    _case("8B, Azure code", CODE, 2),
    _case("8B, Mooncake", MOONCAKE, 0.5, 100),
    _case("8B, BurstGPT", BURST, 1000, 120),
    _case("70B, Azure conversations", CONVERSATION, 3, **_70B),
    _case("70B, Mooncake", MOONCAKE, 0.2, 100, **_70B),
)
ABLATION_CASES = (
    *_BIG_AND_SMALL,
    _case(
        "8B with a 1B draft model, Azure conversations", CONVERSATION, 4, draft_model="llama-3.2-1b"
    ),
    _case("8B with prompt lookup, Azure conversations", CONVERSATION, 6, drafter="lookup"),
    _case("8B, closed loop of 48", None, 1),
)
TRACE_CASES = (
    *_BIG_AND_SMALL,
    _case("70B, Azure code", CODE, 2, **_70B),
    _case("70B, BurstGPT", BURST, 500, 120, **_70B),
)


def ablation_jobs(num_windows: int) -> Iterator[Job]:
    """Windows last: an interrupted comparison has whole windows."""
    for window in range(num_windows):
        for case in ABLATION_CASES:
            yield from (Job(case, variant, window) for variant in VARIANTS)


def trace_cases(starts: str = "") -> list[Case]:
    """Those whose names begin with one of these, separated by semicolons; all without. ValueError
    where none does."""
    found = [case for case in TRACE_CASES if case.name.startswith(tuple(starts.split(";")))]
    if not found:
        raise ValueError(
            f"no case begins with {starts!r}: there are "
            f"{'; '.join(case.name for case in TRACE_CASES)}"
        )
    return found


def trace_jobs(num_windows: int, cases: Iterable[Case] = TRACE_CASES) -> Iterator[Job]:
    """Windows last: an interrupted comparison has whole windows."""
    for window in range(num_windows):
        for case in cases:
            yield from (
                Job(case, WHOLE if policy == "goodput" else policy, window) for policy in POLICIES
            )


def window_name(case: Case, window: int) -> str:
    return f"{case.num_requests}-{window}-{case.trace}"


def write_windows(jobs: list[Job], traces: Path, half: str, folder: Path) -> None:
    """The windows of these jobs as traces of their own. half: choose, what arrives in the first
    half of a recording's time, or report, in the second. Windows of a short half overlap.
    ValueError for a trace that cannot be read."""
    recordings = {
        name: read_trace(traces / name) for name in {job.case.trace for job in jobs} if name
    }
    for job in jobs:
        path = folder / window_name(job.case, job.window)
        if job.case.trace is None or path.exists():
            continue
        trace = recordings[job.case.trace]
        middle = int(
            np.searchsorted(trace.arrival_seconds, np.mean(trace.arrival_seconds[[0, -1]]))
        )
        begin, end = (0, middle) if half == "choose" else (middle, len(trace))
        begin += int(max(end - begin - job.case.num_requests, 0) * (job.window * SPREAD % 1))
        rows = slice(begin, min(begin + job.case.num_requests, end))
        arrivals = (trace.arrival_seconds[rows] - trace.arrival_seconds[begin]).tolist()
        columns = zip(
            arrivals, trace.num_prompt_tokens[rows], trace.num_output_tokens[rows], strict=True
        )
        lines = [
            ",".join(TRACE_COLUMNS),
            *(f"{at!r},{prompt},{output}" for at, prompt, output in columns),
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
