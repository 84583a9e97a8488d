"""Chosen length against batch size, for three acceptances: falls with the batch, rises with
acceptance.

The paper's microbenchmark: 256 tokens in, 256 out, 1 to 128 requests at once, lengths up to 8,
acceptance forced to 0.5, 0.7 and 0.9; here to 0.4 too. The cell nearest the paper's largest
speed-up is among these: acceptance 0.9, length 7, few requests.
"""

from collections.abc import Sequence

from lab.paper.points import Figure, Point, Settings, Values
from smartspec.report.page_parts import Line, Plot, Section, Table
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import simulate_static
from smartspec.sim.static_load import Phase

NAME, CURVES = "lengths", "curves"
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
ACCEPTANCES = (0.4, 0.5, 0.7, 0.9)
POLICIES = ("goodput", "smartspec-paper")
LARGEST, OVER_OFF = (
    {"policy": "fixed:7", "acceptance": "0.9"},
    3.2,
)  # published: up to so much over off, of no named cell
PAIR = {
    "model": "vicuna-7b",
    "draft_model": "vicuna-160m",
    "hardware": "a100-80g",
    "drafter": "model",
    "max_draft_tokens": 8,
}
# Where the paper explains itself: nothing is learned, so few steps are enough.
CURVE_ACCEPTANCES, CURVE_BATCHES, CURVE_STEPS = ("0.9", "0.5"), (1, 8, 32, 128), 20
CONTEXT_TOKENS, OUTPUT_TOKENS = 384, 256  # half of the output is there in the mean


def length_figure(batches: Sequence[int] = BATCHES, num_steps: int = 400) -> Figure:
    """A steady batch of every size, for every acceptance and policy."""
    settings = [
        PAIR
        | {"acceptance": str(acceptance), "batch": batch, "policy": policy, "num_steps": num_steps}
        for policy in POLICIES
        for acceptance in ACCEPTANCES
        for batch in batches
    ]
    settings += [PAIR | LARGEST | {"batch": batch, "num_steps": num_steps} for batch in batches]
    return Figure(NAME, tuple(settings), measure)


def curve_figure() -> Figure:
    """Every length for the same batch, for some batches and acceptances."""
    settings = [
        PAIR
        | {
            "acceptance": acceptance,
            "batch": batch,
            "policy": f"fixed:{length}",
            "num_steps": CURVE_STEPS,
        }
        for acceptance in CURVE_ACCEPTANCES
        for batch in CURVE_BATCHES
        for length in range(1, PAIR["max_draft_tokens"] + 1)
    ]
    return Figure(CURVES, tuple(settings), measure)


def measure(settings: Settings) -> Values:
    """Draft tokens verified per request and step in the second half of the steps, and expected
    tokens per second there with this policy and with off."""
    num_steps = settings["num_steps"]
    fields = {name: value for name, value in settings.items() if name != "num_steps"}
    phase = Phase(
        num_steps, settings["batch"], context_tokens=CONTEXT_TOKENS, output_tokens=OUTPUT_TOKENS
    )
    log, off = (
        simulate_static(Scenario(**fields | {"policy": name}), [phase])
        for name in (fields["policy"], "off")
    )
    steps = slice(num_steps // 2, None)
    return {
        "mean_length": float(log.verified[steps].sum() / log.num_rows[steps].sum()),
        "goodput": log.expected_goodput(steps),
        "goodput_off": off.expected_goodput(steps),
    }


def length_section(points: Sequence[Point]) -> Section:
    """The section of the page."""
    return Section(
        title="Chosen length against batch size (simulated)",
        text=(
            "Vicuna-7B with its 160M draft model on an A100; 256 tokens in and out; lengths up to "
            "8. Every draft token is accepted with the same chance. The paper shows that lengths "
            "fall with the batch and rise with acceptance.",
            "smartspec-paper must win by 10 % before it drafts at all, and has one length for all "
            "requests. goodput may give each request another one, so its means lie between whole "
            "numbers.",
        ),
        plots=tuple(_plot(policy, points) for policy in POLICIES),
        tables=(
            _largest(points),
            _table([point for point in points if point[0]["policy"] in POLICIES]),
        ),
        command="python -m lab.paper",
    )


def _plot(policy: str, points: Sequence[Point]) -> Plot:
    lines = []
    for acceptance in ACCEPTANCES:
        known = [
            (settings["batch"], values["mean_length"])
            for settings, values in points
            if (settings["policy"], settings["acceptance"]) == (policy, str(acceptance))
        ]
        batches, lengths = zip(*known, strict=True) if known else ((), ())
        lines.append(Line(f"acceptance {acceptance}", batches, lengths))
    return Plot(
        policy, "requests at once", "draft tokens per request and step", tuple(lines), log_x=True
    )


def curve_section(points: Sequence[Point]) -> Section:
    """The section of the page."""
    found: dict[str, dict[float, float]] = {}
    for settings, values in points:
        name = f"acceptance {settings['acceptance']}, {settings['batch']} at once"
        gain = values["goodput"] / values["goodput_off"]
        found.setdefault(name, {0.0: 1.0})[float(settings["policy"].removeprefix("fixed:"))] = gain
    best = {name: max(gains, key=gains.__getitem__) for name, gains in found.items()}
    return Section(
        title="Goodput against length (simulated)",
        text=(
            "Vicuna-7B with its 160M draft model on an A100: tokens per second with one length for "
            "all, over those without drafts. The best length is where a curve is highest. It falls "
            "with the batch and rises with acceptance, and no one length is best for all curves: "
            "that is why lengths are to be chosen in each step.",
        ),
        plots=(
            Plot(
                "Goodput of a fixed length",
                "draft tokens per request and step",
                "tokens per second, over off",
                tuple(
                    Line(name, tuple(gains), tuple(gains.values())) for name, gains in found.items()
                ),
                reference=1.0,
            ),
        ),
        tables=(
            Table(
                "Best length, and the worst of 1 to 8 there; least gain first",
                ("curve", "best length", "over off", "worst length", "over off"),
                tuple(
                    (
                        name,
                        f"{best[name]:.0f}",
                        f"{max(gains.values()):.2f}",
                        f"{low:.0f}",
                        f"{gains[low]:.2f}",
                    )
                    for name, gains in sorted(found.items(), key=lambda pair: max(pair[1].values()))
                    for low in [min((k for k in gains if k), key=gains.__getitem__)]
                ),
                "Expected tokens and seconds, so without noise.",
            ),
        ),
        command="python -m lab.paper",
    )


def _largest(points: Sequence[Point]) -> Table:
    """Tokens per second over off where speculation wins most."""
    over_off = {
        (settings["policy"], settings["batch"]): values["goodput"] / values["goodput_off"]
        for settings, values in points
        if settings["acceptance"] == LARGEST["acceptance"]
    }
    policies = (LARGEST["policy"], *POLICIES)
    rows = [
        (
            str(batch),
            *(
                f"{over_off[policy, batch]:.2f}" if (policy, batch) in over_off else "-"
                for policy in policies
            ),
        )
        for batch in sorted({batch for _, batch in over_off}, reverse=True)
    ]
    return Table(
        f"Nearest the paper's {OVER_OFF} x: tokens per second over off with acceptance "
        f"{LARGEST['acceptance']}",
        ("requests", *policies),
        tuple(rows),
        "Largest batch, which gains least, first. Expected tokens and seconds, so without noise.",
    )


def _table(points: Sequence[Point]) -> Table:
    rows = sorted(
        (
            (values["goodput"] / values["goodput_off"], settings, values["mean_length"])
            for settings, values in points
        ),
        key=lambda row: row[0],
    )
    return Table(
        "Tokens per second over off, worst first",
        ("policy", "acceptance", "requests", "length", "over off"),
        tuple(
            (
                settings["policy"],
                settings["acceptance"],
                str(settings["batch"]),
                f"{length:.1f}",
                f"{ratio:.3f}",
            )
            for ratio, settings, length in rows
        ),
        "Expected tokens and seconds, so without noise.",
    )
