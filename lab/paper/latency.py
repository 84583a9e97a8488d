"""Mean request latency against request rate: the paper's main figure, one plot for each pair of models and workload."""

from collections.abc import Sequence

from lab.paper.cells import CELLS, Cell
from lab.paper.points import Figure, Point, Settings, Values
from lab.paper.ratios import paired_ratio
from lab.paper.virtual_run import latencies_of, run_virtually
from smartspec.report.sections import Line, Plot, Section, Table
from smartspec.sim.scenario import Scenario

NAME = "latency"
NUM_REQUESTS, SECONDS = 60, 8  # of each point at least: a load past saturation needs time to pile up

Latencies = dict[tuple[float, str], list[float]]  # seconds of requests, by rate and policy


def latency_figure(cells: Sequence[Cell] = CELLS, num_requests: int = NUM_REQUESTS) -> Figure:
    """Every cell at every rate with every policy; cell by cell, so that whole plots come first."""
    settings = [
        {"cell": cell.name}
        | cell.scenario
        | {"rate": rate, "policy": policy, "num_requests": max(num_requests, round(SECONDS * rate))}
        for cell in cells
        for rate in cell.rates
        for policy in cell.policies
    ]
    return Figure(NAME, tuple(settings), measure)


def measure(settings: Settings) -> Values:
    """Latencies in seconds of all requests, and mean draft tokens verified per request and step."""
    scenario = Scenario(**{name: value for name, value in settings.items() if name != "cell"})
    run = run_virtually(scenario)
    totals = run.totals
    return {
        "latencies": latencies_of(run),
        "mean_length": totals.num_verified_tokens / max(totals.num_row_steps, 1),
    }


def latencies_by_cell(points: Sequence[Point]) -> dict[str, Latencies]:
    """What was measured, by name of cell."""
    found: dict[str, Latencies] = {}
    for settings, values in points:
        of_cell = found.setdefault(settings["cell"], {})
        of_cell[settings["rate"], settings["policy"]] = values["latencies"]
    return found


def latency_section(points: Sequence[Point], cells: Sequence[Cell] = CELLS) -> Section:
    """The section of the page."""
    found = latencies_by_cell(points)
    shown = [cell for cell in cells if cell.name in found]
    return Section(
        title="Mean request latency against rate (simulated)",
        text=(
            "Each plot is a pair of models with a workload. The same Poisson arrivals meet every policy. A good policy "
            "follows the lower envelope of the fixed lengths, and is never above off. That is the paper's claim: at "
            "high rates and low acceptance fixed lengths are slower than off, and SmartSpec is not. The last rate of "
            "each plot is beyond what plain decoding can serve.",
            "Times are those of a roofline of the named devices, fitted to measured steps on H100s and assumed on "
            "A100s. Acceptance and text lengths are assumed: no source states them by cell. So shapes can be "
            "compared with the paper's, single values cannot. The controller's own time is not charged.",
        ),
        plots=tuple(_plot(cell, found[cell.name]) for cell in shown),
        tables=(_claim(shown, found), _table(shown, found)),
        command="python -m lab.paper",
    )


def _plot(cell: Cell, latencies: Latencies) -> Plot:
    lines = []
    for policy in cell.policies:
        known = [(rate, latencies[rate, policy]) for rate in cell.rates if (rate, policy) in latencies]
        means = tuple(sum(of_rate) / len(of_rate) for _, of_rate in known)
        lines.append(Line(policy, tuple(rate for rate, _ in known), means))
    return Plot(
        title=cell.name,
        x_label="requests per second",
        y_label="mean latency, seconds",
        lines=tuple(lines),
        caption=f"Drafts: {cell.style}. Pair, devices and data: {cell.source}.",
        log_x=True,
        log_y=True,
    )


def _table(cells: Sequence[Cell], found: dict[str, Latencies]) -> Table:
    """goodput against off, against the best fixed length of each rate, and against the paper's rule."""
    rows = []
    for cell in cells:
        for rate in cell.rates:
            latencies = {policy: found[cell.name].get((rate, policy)) for policy in cell.policies}
            if None not in latencies.values():
                rows.append(_row(cell, rate, latencies))
    rows.sort(key=lambda row: row[0])
    return Table(
        "How many times as long requests take without goodput, worst against the best fixed length first",
        ("cell", "requests/s", "off / goodput", "best fixed", "best fixed / goodput", "smartspec-paper / goodput"),
        tuple(row[1] for row in rows),
        "Below 1 goodput is slower. In brackets: 90 % interval over requests; noise: it holds 1. The best fixed length "
        "is chosen for each rate afterwards, which cannot be done in advance.",
    )


def _claim(cells: Sequence[Cell], found: dict[str, Latencies]) -> Table:
    """The points at which a fixed length makes requests slower than off."""
    rows = []
    for cell in cells:
        for rate in cell.rates:
            latencies = {policy: found[cell.name].get((rate, policy)) for policy in cell.policies}
            if None not in latencies.values():
                slowest = max(fixed_policies(cell), key=lambda policy: sum(latencies[policy]))
                policies = (slowest, best_fixed(cell, latencies), "smartspec-paper", "goodput")
                ratios = [paired_ratio(latencies[policy], latencies["off"]) for policy in policies]
                texts = [f"{policies[i]}: {ratios[i].text()}" for i in (0, 1)]
                rows.append((ratios, (cell.name, f"{rate:g}", *texts, *(ratio.text() for ratio in ratios[2:]))))
    slower = sorted((row for row in rows if row[0][0].low > 1), key=lambda row: -row[0][-1].value)
    return Table(
        "Where a fixed length is slower than off: latency over that of off, worst of goodput first",
        ("cell", "requests/s", "slowest fixed", "best fixed", "smartspec-paper", "goodput"),
        tuple(row for _, row in slower),
        f"{len(slower)} of {len(rows)} points; beyond noise. Above 1 a policy is slower than off. In brackets: 90 % "
        "interval over requests; noise: it holds 1.",
    )


def _row(cell: Cell, rate: float, latencies: dict[str, list[float]]) -> tuple[float, tuple[str, ...]]:
    best = best_fixed(cell, latencies)
    ratios = [paired_ratio(latencies[policy], latencies["goodput"]) for policy in ("off", best, "smartspec-paper")]
    against_off, against_best, against_paper = (ratio.text() for ratio in ratios)
    return ratios[1].value, (cell.name, f"{rate:g}", against_off, best, against_best, against_paper)


def best_fixed(cell: Cell, latencies: dict[str, list[float]]) -> str:
    """The fixed policy of least mean latency."""
    return min(fixed_policies(cell), key=lambda policy: sum(latencies[policy]))


def fixed_policies(cell: Cell) -> list[str]:
    """Those of the cell that draft alike in every step."""
    return [policy for policy in cell.policies if policy.startswith(("fixed:", "eagle2:"))]
