"""The pages docs/results/ablation.md and lab/results/traces.md, from the JSON beside them."""

ABLATION = """# What each mechanism of the controller brings

    {command}

Change of latency in percent when one mechanism of `goodput` alone is turned off: above zero, the mechanism helps.
*core* is the planner with estimates of acceptance and corrected times, without all else. In brackets the
90 % interval (bootstrap over windows and requests, paired).

{setting}
Two measurements of the same controller differ by up to 0.15 ms a step: a change below 1.5 % says little, whatever
its interval.

## All cases

Geometric mean over the cases; what brings least first. *controller*: milliseconds charged to a step of 16 requests
with a draft model.

{pooled}

## Mean latency by case

{mean}
"""  # noqa: E501
TRACES = """# Policies on recorded traffic

    {command}

{setting}

## goodput against off and the best baseline

Change of the latency of `goodput` in percent: below zero, it is faster. In brackets the 90 % interval (bootstrap over
windows and requests, paired). The best baseline is the best of these very windows in hindsight, for each figure by
itself. Worst case first.

{against}

## Mean latency

*controller*: milliseconds charged to a step of 16 requests. *loss*: percent above the best policy of a case, in its
best and its worst case. Then the seconds of each case. The two `perfect` policies are no candidates for the best:
`perfect-estimates` knows the true acceptance and times, `perfect-outcomes` also which draft tokens are right.

{seconds}
"""  # noqa: E501
SETTING = """Simulated. Windows a case: {windows}; all that are compared meet the same requests and random numbers.
Of {half}.
Each is charged its own controller time, measured beforehand. Commit {commit}, machine: {machine}."""  # noqa: E501
SHOWN = ("mean", "p99")
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
    by_case = [
        [case, *(interval(found[variant, case]["mean"]) for variant in variants)] for case in cases
    ]
    overview = [
        [
            row["variant"],
            *(interval(row[name]) for name in SHOWN),
            data["controller_ms"][row["variant"]],
        ]
        for row in pooled
    ]
    return ABLATION.format(
        **_heading(data),
        pooled=table(["variant", *SHOWN, "controller"], overview),
        mean=table(["case", *variants], by_case),
    )


def traces_page(data: dict) -> str:
    against = [
        [
            row["case"],
            *(interval(row["off"][name]) for name in SHOWN),
            *(
                f"{interval(row['best'][name]['change'])} `{row['best'][name]['policy']}`"
                for name in SHOWN
            ),
        ]
        for row in sorted(data["against"], key=lambda row: -row["best"]["mean"]["change"][0])
    ]
    cases = list(data["seconds"])
    mean = {
        policy: [data["seconds"][case][policy]["mean"] for case in cases]
        for policy in data["seconds"][cases[0]]
    }
    real = [seconds for policy, seconds in mean.items() if not policy.startswith("perfect")]
    best = [min(of_case) for of_case in zip(*real, strict=True)]
    seconds = [
        [
            f"`{policy}`",
            data["controller_ms"][policy],
            _losses(row, best),
            *(f"{value:.2f}" for value in row),
        ]
        for policy, row in mean.items()
    ]
    headers = [
        "case",
        *(f"off, {name}" for name in SHOWN),
        *(f"best, {name}" for name in SHOWN),
    ]
    return TRACES.format(
        **_heading(data),
        against=table(headers, against),
        seconds=table(["policy", "controller", "loss", *cases], seconds),
    )


def interval(change: list[float]) -> str:
    """A change in percent and its interval: -1.2 (-1.9 to +0.1)."""
    value, low, high = (f"{number:+.1f}" for number in change)
    return f"{value} ({low} to {high})"


def table(headers: list[str], rows: list[list[object]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _losses(row: list[float], best: list[float]) -> str:
    losses = [100 * (value / least - 1) for value, least in zip(row, best, strict=True)]
    return f"{min(losses):.1f} to {max(losses):.1f}"


def _heading(data: dict) -> dict[str, str]:
    about = {name: data[name] for name in ("windows", "commit", "machine")}
    return {
        "command": data["command"],
        "setting": SETTING.format(half=HALVES[data["half"]], **about),
    }
