"""Mean request latency against request rate: the paper's main figure, one plot for each pair of
models and workload."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from lab.paper.cells import CELLS, NO_DRAFTER, Cell, Effort
from lab.paper.points import Figure, Point, Settings, Values
from lab.paper.ratios import SPREAD, Ratio, ratio_of_seeds
from lab.paper.virtual_run import latencies_of, run_virtually
from smartspec.report.page_parts import Line, Plot, Section, Table
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import kv_tokens

NAME = "latency"

# mean seconds of a request by seed, by rate and policy
Means = dict[tuple[float, str], dict[int, float]]
Latencies = dict[str, list[float]]  # the same at one rate: by policy, of the seeds that all have


def latency_figure(
    effort: Effort, capacities: Mapping[str, float], cells: Sequence[Cell] = CELLS
) -> Figure:
    """Every cell of known capacity at every rate with every policy. Seed by seed, cell by cell: a
    run that is ended early has whole plots. capacities: requests per second that off can serve, by
    name of cell."""
    settings = [
        {"cell": cell.name, "arm": policy}
        | cell.scenario_of(policy)
        | {
            "rate": float(f"{share * capacities[cell.name]:.3g}"),
            "seconds": effort.seconds,
            "seed": seed,
        }
        for seed in effort.seeds
        for cell in cells
        if cell.name in capacities
        for share in effort.shares
        for policy in policies_of(cell, effort)
    ]
    return Figure(NAME, tuple(settings), measure)


def policies_of(cell: Cell, effort: Effort) -> tuple[str, ...]:
    """Where memory binds, also off without a drafter."""
    return (*effort.policies_of(cell), *((NO_DRAFTER,) if memory_binds(cell) else ()))


def memory_binds(cell: Cell) -> bool:
    """True if a draft model takes memory, and beside it fewer requests of mean length fit than may
    run at once."""
    scenario = Scenario(rate=1.0, **cell.scenario)
    mean = scenario.prompt_tokens + scenario.output_tokens / 2
    return scenario.has_model and kv_tokens(scenario) < scenario.max_batch * mean


def measure(settings: Settings) -> Values:
    """Mean and 99th percentile of latency and mean time to the first token, in seconds; mean draft
    tokens verified per request and step."""
    scenario = Scenario(
        **{name: value for name, value in settings.items() if name not in ("cell", "arm")}
    )
    run = run_virtually(scenario)
    latencies, totals = latencies_of(run), run.totals
    return {
        "mean": round(fmean(latencies), 5),
        "p99": round(float(np.percentile(latencies, 99)), 5),
        "ttft": round(fmean(record.ttft_seconds for record in run.records), 5),
        "requests": len(latencies),
        "mean_length": round(totals.num_verified_tokens / max(totals.num_decode_rows, 1), 4),
    }


def means_by_cell(points: Sequence[Point], value: str = "mean") -> dict[str, Means]:
    """What was measured, by name of cell. value: mean, p99 or ttft."""
    found: dict[str, Means] = {}
    for settings, values in points:
        means = found.setdefault(settings["cell"], {})
        means.setdefault((settings["rate"], settings["arm"]), {})[settings["seed"]] = values[value]
    return found


def by_rate(means: Means) -> dict[float, Latencies]:
    """Of one cell: rates with a seed that all its policies have, in order."""
    found: dict[float, Latencies] = {}
    policies = dict.fromkeys(policy for _, policy in means)
    if not {"off", "goodput"} <= set(policies):
        return found
    for rate in sorted({rate for rate, _ in means}):
        of_policy = {policy: means.get((rate, policy), {}) for policy in policies}
        seeds = sorted(set.intersection(*map(set, of_policy.values())))
        if seeds:
            found[rate] = {
                policy: [known[seed] for seed in seeds] for policy, known in of_policy.items()
            }
    return found


def latency_section(points: Sequence[Point], cells: Sequence[Cell] = CELLS) -> Section:
    """The section of the page."""
    means = means_by_cell(points)
    found = {cell.name: (cell, by_rate(means[cell.name])) for cell in cells if cell.name in means}
    seconds = points[0][0]["seconds"]
    return Section(
        title="Mean request latency against rate (simulated)",
        text=(
            *_headline([row for cell, rates in found.values() for row in _ratios(cell, rates)]),
            "Each plot is a pair of models with a workload. The same Poisson arrivals of "
            f"{seconds:g} s meet every policy. A good policy follows the lower envelope of the "
            "fixed lengths, and is never above off. That is the paper's claim: at high rates and "
            "low acceptance fixed lengths are slower than off, and SmartSpec is not. Rates are "
            "shares of what off can serve, which is measured first.",
            "Queues make the largest ratios. Between what off can serve and what speculation can, "
            "requests of off wait for longer and longer while others arrive, and those of a good "
            "policy do not. So the ratio grows with the length of the run, and no bound of a "
            "single request holds it. Far beyond both, all wait.",
            "Times are those of a roofline of the named devices, fitted to measured steps on H100s "
            "and assumed on A100s. Acceptance and text lengths are assumed: no source states them "
            "by cell. So shapes can be compared with the paper's, single values cannot. The "
            "controller's own time is not charged.",
        ),
        plots=tuple(_plot(cell, means[name]) for name, (cell, _) in found.items()),
        tables=(_table(found), _claim(found), *_bare(found, means_by_cell(points, "ttft"))),
        command="python -m lab.paper",
    )


def _plot(cell: Cell, means: Means) -> Plot:
    """Means over seeds, and the least and the largest of them."""
    lines = []
    for policy in dict.fromkeys(policy for _, policy in means):
        known = sorted(
            (rate, list(seeds.values())) for (rate, name), seeds in means.items() if name == policy
        )
        rates, values = zip(*known, strict=True)
        bounds = (
            ((), ())
            if max(map(len, values)) == 1
            else (tuple(map(min, values)), tuple(map(max, values)))
        )
        lines.append(Line(policy, rates, tuple(map(fmean, values)), *bounds))
    return Plot(
        title=cell.name,
        x_label="requests per second",
        y_label="mean latency, seconds",
        lines=tuple(lines),
        caption=f"Drafts: {cell.style}. Pair, devices and data: {cell.source}. Shaded: of single seeds.",  # noqa: E501
        log_x=True,
        log_y=True,
    )


@dataclass(frozen=True)
class _Row:
    """A point: cell, requests per second, and latencies over those of goodput."""

    cell: str
    rate: float
    off: Ratio
    fixed: str
    best_fixed: Ratio
    paper: Ratio | None
    seeds: int

    def texts(self) -> tuple[str, ...]:
        paper = "-" if self.paper is None else self.paper.text()
        ratios = self.off.text(), self.fixed, self.best_fixed.text(), paper
        return self.cell, f"{self.rate:g}", *ratios, str(self.seeds)


def _ratios(cell: Cell, rates: dict[float, Latencies]) -> list[_Row]:
    rows = []
    for rate, latencies in rates.items():
        best, goodput = best_fixed(latencies), latencies["goodput"]
        paper = latencies.get("smartspec-paper")
        rows.append(
            _Row(
                cell.name,
                rate,
                ratio_of_seeds(latencies["off"], goodput),
                best,
                ratio_of_seeds(latencies[best], goodput),
                None if paper is None else ratio_of_seeds(paper, goodput),
                len(goodput),
            )
        )
    return rows


def _headline(rows: Sequence[_Row]) -> list[str]:
    """The worst and the best point."""
    if not rows:
        return []
    worst, best = (choose(rows, key=lambda row: row.off.value) for choose in (min, max))
    return [
        f"Of {len(rows)} points, off / goodput is {worst.off.text()} in the worst ({worst.cell}, "
        f"{worst.rate:g} a second) and {best.off.text()} in the best ({best.cell}, {best.rate:g} a "
        "second)."
    ]


Found = dict[str, tuple[Cell, dict[float, Latencies]]]


def _table(found: Found) -> Table:
    """goodput against off, against the best fixed length of each rate, and against the paper's
    rule."""
    rows = [row for cell, rates in found.values() for row in _ratios(cell, rates)]
    return Table(
        "How many times as long requests take without goodput, worst against off first",
        ("cell", "requests/s", "off", "best fixed", "its latency", "smartspec-paper", "seeds"),
        tuple(row.texts() for row in sorted(rows, key=lambda row: row.off.value)),
        f"Latency over that of goodput: below 1 goodput is slower. {SPREAD} The best fixed length "
        "is chosen for each rate afterwards, which cannot be done in advance.",
    )


def _claim(found: Found) -> Table:
    """The points at which a fixed length makes requests slower than off."""
    rows = []
    for cell, rates in found.values():
        for rate, latencies in rates.items():
            slowest = max(fixed_of(latencies), key=lambda policy: sum(latencies[policy]))
            policies = [
                slowest,
                best_fixed(latencies),
                *({"smartspec-paper"} & set(latencies)),
                "goodput",
            ]
            ratios = [ratio_of_seeds(latencies[policy], latencies["off"]) for policy in policies]
            texts = [f"{policies[i]}: {ratios[i].text()}" for i in (0, 1)]
            others = [ratio.text() for ratio in ratios[2:]]
            rows.append(
                (ratios, (cell.name, f"{rate:g}", *texts, *(["-"] * (2 - len(others))), *others))
            )
    slower = sorted((row for row in rows if row[0][0].low > 1), key=lambda row: -row[0][-1].value)
    return Table(
        "Where a fixed length is slower than off: latency over that of off, worst of goodput first",
        ("cell", "requests/s", "slowest fixed", "best fixed", "smartspec-paper", "goodput"),
        tuple(row for _, row in slower),
        f"{len(slower)} of {len(rows)} points, with every seed. Above 1 a policy is slower than "
        f"off. {SPREAD}",
    )


def _bare(found: Found, ttft: dict[str, Means]) -> list[Table]:
    """Off as it is where no drafter is loaded, in the cells where that makes a difference."""
    rows = []
    for name, (cell, rates) in found.items():
        for rate, latencies in rates.items():
            for policy in (NO_DRAFTER, "off", "goodput") if NO_DRAFTER in latencies else ():
                kv = kv_tokens(Scenario(rate=1.0, **cell.scenario_of(policy)))
                seconds = fmean(latencies[policy]), fmean(ttft[name][rate, policy].values())
                rows.append(
                    (name, f"{rate:g}", policy, f"{kv:,}", *(f"{each:.2f}" for each in seconds))
                )
    if not rows:
        return []
    return [
        Table(
            "What the memory of the drafter costs where it binds",
            (
                "cell",
                "requests/s",
                "policy",
                "tokens of KV",
                "mean latency, s",
                "mean time to first token, s",
            ),
            tuple(rows),
            "off is served beside a loaded drafter, as a server that turns speculation off by "
            "itself does: the weights and the KV of the drafter take memory all the same.",
        )
    ]


def best_fixed(latencies: Latencies) -> str:
    """The fixed policy of least mean latency."""
    return min(fixed_of(latencies), key=lambda policy: sum(latencies[policy]))


def fixed_of(latencies: Latencies) -> list[str]:
    """Those policies that draft alike in every step."""
    return [policy for policy in latencies if policy.startswith(("fixed:", "eagle2:"))]
