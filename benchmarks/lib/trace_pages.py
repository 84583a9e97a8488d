"""The pages docs/results/ablation.md and docs/results/traces.md, from the JSON beside them."""

from lib.trace_statistics import STATISTICS

ABLATION = """# What each mechanism of the controller brings

    {command}

Change of latency, in percent, when one mechanism of `goodput` is turned off, alone: below zero, it is faster without
it. *core* is the planner, estimates of acceptance and corrected times, without all else. In brackets the
90 % interval (bootstrap over windows and requests, paired).

{setting}
Two measurements of the same controller differ by up to 0.15 ms a step: a change below 1.5 % says little, whatever
its interval. BurstGPT's windows overlap, as that recording is short; those of the closed loop differ in random numbers.

## All cases

Geometric mean over the cases; what brings least first. *controller*: milliseconds charged to a step of 16 requests
with a draft model.

{pooled}

## Mean latency by case

{mean}

## Median latency by case

{p50}

## p99 of latency by case

{p99}

## Latency of the whole controller

Seconds.

{whole}
"""  # noqa: E501
TRACES = """# Policies on recorded traffic

    {command}

{setting}

## goodput against off and the best baseline

Change of the latency of `goodput` in percent: below zero, it is faster. In brackets the 90 % interval (bootstrap over
windows and requests, paired). The best baseline is the best of these very windows in hindsight, for each figure by
itself. Worst case first.

{against}

## Seconds

Latency of a request: mean / p50 / p99. *controller*: milliseconds charged to a step of 16 requests.
`perfect-estimates` knows the real acceptance and times. It is greedy in the step: no bound. `perfect-outcomes` also
knows which draft tokens are right. It does not know which requests come, nor what a step costs later ones.

{seconds}
"""  # noqa: E501
SETTING = """Simulated. Windows a case: {windows}; all that are compared meet the same requests and random numbers.
Of {half}.
Each is charged its own controller time, measured beforehand. Commit {commit}, {machine}."""  # noqa: E501
HALVES = {
    "choose": "the first half of each recording's time, on which constants may be chosen",
    "report": (
        "the second half of each recording's time, kept for reporting (older constants have seen "
        "it)"
    ),
}


def ablation_page(data: dict) -> str:
    pooled = sorted(data["pooled"], key=lambda row: row["mean"][0])
    variants, cases = [row["variant"] for row in pooled], [row["case"] for row in data["whole"]]
    found = {(row["variant"], row["case"]): row for row in data["rows"]}
    matrices = {
        name: table(
            [name, *variants],
            [
                [case, *(interval(found[variant, case][name]) for variant in variants)]
                for case in cases
            ],
        )
        for name in STATISTICS
    }
    overview = [
        [
            row["variant"],
            *(interval(row[name]) for name in STATISTICS),
            data["controller_ms"][row["variant"]],
        ]
        for row in pooled
    ]
    whole = [[row["case"], *(f"{row[name]:.2f}" for name in STATISTICS)] for row in data["whole"]]
    return ABLATION.format(
        **_heading(data),
        pooled=table(["variant", *STATISTICS, "controller"], overview),
        whole=table(["case", *STATISTICS], whole),
        **matrices,
    )


def traces_page(data: dict) -> str:
    against = [
        [
            row["case"],
            *(interval(row["off"][name]) for name in STATISTICS),
            *(
                f"{interval(row['best'][name]['change'])} `{row['best'][name]['policy']}`"
                for name in STATISTICS
            ),
        ]
        for row in sorted(data["against"], key=lambda row: -row["best"]["mean"]["change"][0])
    ]
    cases = list(data["seconds"])
    policies = list(data["seconds"][cases[0]])
    seconds = [
        [
            f"`{policy}`",
            data["controller_ms"][policy],
            *(_triple(data["seconds"][case][policy]) for case in cases),
        ]
        for policy in policies
    ]
    headers = [
        "case",
        *(f"off, {name}" for name in STATISTICS),
        *(f"best, {name}" for name in STATISTICS),
    ]
    return TRACES.format(
        **_heading(data),
        against=table(headers, against),
        seconds=table(["policy", "controller", *cases], seconds),
    )


def interval(change: list[float]) -> str:
    """A change in percent and its interval: -1.2 (-1.9 to +0.1)."""
    value, low, high = (f"{number:+.1f}" for number in change)
    return f"{value} ({low} to {high})"


def table(headers: list[str], rows: list[list[object]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _triple(seconds: dict[str, float]) -> str:
    return " / ".join(f"{seconds[name]:.2f}" for name in STATISTICS)


def _heading(data: dict) -> dict[str, str]:
    about = {name: data[name] for name in ("windows", "commit", "machine")}
    return {
        "command": data["command"],
        "setting": SETTING.format(half=HALVES[data["half"]], **about),
    }
