"""What the page of a measured matrix says: what a person should know first, then the plots, then
every figure."""

from collections.abc import Sequence
from statistics import geometric_mean

from smartspec.bench.report import optional
from smartspec.report.curves import latency_plots, over_time_plots, speed_up_plot, throughput_plots
from smartspec.report.folder import Runs
from smartspec.report.matrix import Matrix
from smartspec.report.page_parts import Section, Table
from smartspec.report.results import CellFigures, Results
from smartspec.report.speed_ups import MIN_REPETITIONS, NOISE, TOO_FEW, SpeedUp
from smartspec.workload.summary import Distribution

BEST_FIXED = "best fixed length"


def sections_of(results: Results) -> list[Section]:
    """The page, in the order of what a reader wants to know."""
    curves = (
        (
            "Tokens per second by requests at once",
            "Closed loop: so many requests are always under way. Higher is better.",
            throughput_plots(results.figures),
        ),
        (
            "Latency by arrival rate",
            "Open loop: requests arrive whether or not others have ended. Lower is better.",
            latency_plots(results.matrix, results.runs),
        ),
        (
            "Latency over time",
            "The rate and the workload change in steps. Lower is better.",
            over_time_plots(results.matrix, results.runs),
        ),
    )
    return [
        _glance(results),
        *(Section(title, (text,), plots) for title, text, plots in curves if plots),
        Section("Every cell", (), tables=_tables_of_cells(results.figures)),
        *([_failures(results.failed)] if results.failed else []),
        _method(results),
    ]


def _glance(results: Results) -> Section:
    ratios = results.speed_ups
    compared = {
        variant.name: some
        for variant in results.matrix.variants
        if (some := [each for each in ratios if each.other == variant.name])
    }
    if len({each.other for each in results.over_best_fixed}) > 1:
        compared[BEST_FIXED] = results.over_best_fixed
    text = [_verdicts(results.ours, name, some) for name, some in compared.items()]
    if not text:
        text = [
            f"There is no cell yet in which both {results.ours} and another variant were measured."
        ]
    text = [*_legend(results), *text, *_caveats(results)]
    plots = tuple(speed_up_plot(results.ours, name, some) for name, some in compared.items())
    rows = tuple(map(_row, ratios))
    header = (
        "workload",
        "load",
        f"{results.ours} against",
        "speed-up",
        "90 % interval",
        "verdict",
        "repetitions",
    )
    note = (
        "Speed-up: the other's mean end-to-end latency over ours, of the same requests, within one "
        "repetition; the median over repetitions. Above 1, ours is faster. Inside the noise: the "
        "interval holds 1."
    )
    table = Table("All comparisons, the worst first", header, rows, note)
    return Section("At a glance", tuple(text), plots, (table,), results.command)


def _legend(results: Results) -> list[str]:
    """The meaning of the names of policies, for a reader who knows none."""
    policies = {variant.policy or "" for variant in results.matrix.variants}
    meanings = ["off serves without drafts"] if "off" in policies else []
    if any(policy.startswith("fixed:") for policy in policies):
        meanings.append("fixed:K drafts K tokens for every request in every step")
    if "goodput" in policies:
        meanings.append(
            "goodput is SmartSpec, which chooses the length of each draft by what it is worth"
        )
    return [f"{'; '.join(meanings)}."] if meanings else []


def _verdicts(ours: str, other: str, ratios: Sequence[SpeedUp]) -> str:
    verdicts = [each.verdict for each in ratios]
    shown = ["slower", NOISE, "faster", *([TOO_FEW] if TOO_FEW in verdicts else [])]
    counted = ", ".join(f"{verdict} in {verdicts.count(verdict)}" for verdict in shown)
    if len(ratios) == 1:
        return f"{ours} against {other}: {_one(ratios[0])}."
    return (
        f"{ours} against {other}, {len(ratios)} cells: {counted}. Worst: {_one(ratios[0])}. Best: "
        f"{_one(ratios[-1])}. Geometric mean: "
        f"{geometric_mean([each.ratio for each in ratios]):.2f}."
    )


def _one(each: SpeedUp) -> str:
    return f"{each.cell.name}, {each.ratio:.2f} x ({_interval(each)}; {each.verdict})"


def _interval(each: SpeedUp) -> str:
    return f"{each.low:.2f} to {each.high:.2f}"


def _row(each: SpeedUp) -> tuple[str, ...]:
    cells = (each.cell.workload, each.cell.load.name, each.other)
    return *cells, f"{each.ratio:.2f}", _interval(each), each.verdict, str(each.repetitions)


def _caveats(results: Results) -> list[str]:
    text, ratios = [], results.speed_ups
    if ratios and min(each.repetitions for each in ratios) < MIN_REPETITIONS:
        text.append(
            f"Some cells have fewer than {MIN_REPETITIONS} repetitions. Their intervals know "
            "little of what differs between runs. The same command with more --repetitions goes "
            "on."
        )
    equal = [each for each in ratios if each.equal_answers is not None]
    if equal:
        num_pairs = sum(each.num_pairs for each in equal)
        num_equal = sum(each.equal_answers * each.num_pairs for each in equal)
        text.append(
            f"Of {num_pairs} pairs of answers that were compared, {num_equal / num_pairs:.1%} are "
            "the same text."
        )
    missing = [cell for cell in results.matrix.cells if not _is_measured(results, cell.name)]
    if missing:
        text.append(
            f"{len(missing)} of {len(results.matrix.cells)} cells are not complete: the same "
            "command goes on."
        )
    if results.failed:
        text.append(f"{len(results.failed)} runs failed and are not among the figures.")
    return text


def _is_measured(results: Results, cell: str) -> bool:
    """True if each variant has been measured there."""
    return {key[0] for key in results.runs if key[1] == cell} >= {
        variant.name for variant in results.matrix.variants
    }


def _tables_of_cells(figures: Sequence[CellFigures]) -> tuple[Table, ...]:
    """A table of latencies and one of throughput; the slowest cell first."""
    slowest = sorted(figures, key=lambda each: -each.end_to_end_seconds.mean)
    parts = [
        f"{name} {what}"
        for name in ("end to end", "TTFT", "TPOT")
        for what in ("mean", "p50", "p99")
    ]
    latencies = tuple(
        (
            *_cell(each),
            *_three(each.end_to_end_seconds),
            *_three(each.ttft_seconds),
            *_three(each.tpot_seconds),
        )
        for each in slowest
    )
    rates = tuple(
        (
            *_cell(each),
            f"{each.tokens_per_second:.1f}",
            optional(each.acceptance, ".3f"),
            optional(each.mean_k, ".2f"),
            str(each.repetitions),
        )
        for each in sorted(figures, key=lambda each: each.tokens_per_second)
    )
    head = ("workload", "load", "variant")
    note = (
        "acceptance: accepted over verified draft tokens. mean k: verified draft tokens per "
        "request and step."
    )
    return (
        Table("Latencies in milliseconds, the slowest first", (*head, *parts), latencies),
        Table(
            "Throughput, the least first",
            (*head, "tokens/s", "acceptance", "mean k", "repetitions"),
            rates,
            note,
        ),
    )


def _cell(each: CellFigures) -> tuple[str, str, str]:
    return each.cell.workload, each.cell.load.name, each.variant


def _three(values: Distribution | None) -> list[str]:
    if values is None:
        return ["-"] * 3
    return [f"{1000 * seconds:.1f}" for seconds in (values.mean, values.p50, values.p99)]


def _failures(failed: Runs) -> Section:
    rows = tuple(
        (key[1], key[0], str(key[2] + 1), run.failure or "") for key, run in failed.items()
    )
    text = ("These runs are not among the figures. The same command tries them again.",)
    return Section(
        "What failed", text, tables=(Table("Runs", ("cell", "variant", "repetition", "why"), rows),)
    )


def _method(results: Results) -> Section:
    rounds = (
        "A repetition of a cell sends the same requests to every variant, one variant after the "
        "other. The order turns from round to round. Servers that are started are all up, and only "
        "one gets requests at a time. A server that takes a cache_salt gets a new one for each "
        "run, and each time a prompt comes again in it: no request finds cached prefixes of an "
        "earlier one of its prompt, or its answer to draft from."
    )
    interval = (
        "Intervals are bootstraps of 90 %: repetitions are drawn again, and the pairs of requests "
        "within each. A run in which a request failed does not count."
    )
    raw = (
        "Beside this page: runs.jsonl (a line for each run, with every request), summary.json and "
        "matrix.json."
    )
    commits = sorted({run.commit for run in results.runs.values() if run.commit})
    environment = dict(results.environment) | ({"commit": ", ".join(commits)} if commits else {})
    tables = (
        Table("Environment", ("what", "value"), tuple(environment.items())),
        Table("Settings", ("what", "value"), tuple(_settings(results.matrix))),
    )
    return Section(
        "How it was measured",
        (rounds, interval, raw),
        (),
        tables,
    )


def _settings(matrix: Matrix) -> list[tuple[str, str]]:
    shown = {
        name: "; ".join(value) if isinstance(value, list) else value
        for name, value in matrix.description().items()
    }
    return [
        (name.replace("_", " "), "default" if value in (None, "") else str(value))
        for name, value in shown.items()
    ]
