"""Tables and a figure of measured cells."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

OFF, OURS = "off", "goodput"
MAIN_JOB, MAIN_NOTE = "eagle3", "0.5/0.85"
Cells = list[dict]


def read_cells(files: list[Path]) -> Cells:
    """All lines of results. ValueError names a file that holds no cell."""
    lines: Cells = []
    for path in files:
        try:
            found = [
                json.loads(line)
                for line in path.read_text(encoding="utf-8").splitlines()
                if line.strip()
            ]
        except ValueError as error:
            raise ValueError(f"{path} holds no lines of JSON: {error}") from error
        if not any("cell" in line or "exact" in line for line in found):
            raise ValueError(f"{path} holds no measured cell")
        lines += found
    return lines


def speeds(lines: Cells, job: str, note: str) -> dict[int, dict[str, list[float]]]:
    """Tokens per second: all runs of a policy, by number of requests. `off` comes from its own
    jobs."""
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if "cell" not in line:
            continue
        is_off = line["job"].startswith(OFF) and line["cell"] == OFF
        if is_off or (job_of(line) == job and line["note"] == note):
            name = OFF if is_off else "policy off" if line["cell"] == OFF else line["cell"]
            found[line["level"]][name].append(line["tokens_per_s"])
    return {level: dict(found[level]) for level in sorted(found) if set(found[level]) - {OFF}}


def job_of(line: dict) -> str:
    """The jobs with vLLM's adaptive verification, alone and with SmartSpec, are one table."""
    return line["job"].removesuffix("-stock")


def fixed(policies: dict[str, list[float]]) -> list[float]:
    """Of each fixed length above 0 that was measured, the mean speed."""
    return [
        mean(runs)
        for name, runs in policies.items()
        if name.startswith("stock:") and name != "stock:0"
    ]


def markdown(lines: Cells) -> str:
    batches = [line for line in lines if line.get("at_once")]
    lines = [line for line in lines if not line.get("at_once")]
    groups = dict.fromkeys(
        (job_of(line), line["note"]) for line in lines if line.get("cell", OFF) != OFF
    )
    parts = [_table(job, note, speeds(lines, job, note)) for job, note in groups]
    if falls := [line for line in lines if "steps_to_change" in line]:
        parts.append(_falls(falls))
    if arms := [line for line in lines if "arm" in line]:
        parts.append(_rates(arms))
    if batches:
        parts.append(_batches(batches))
    if checks := [line for line in lines if "exact" in line]:
        parts.append(_checks(checks))
    return "\n\n".join(parts)


def _table(job: str, note: str, found: dict[int, dict[str, list[float]]]) -> str:
    """SmartSpec in bold where it is more than 2 % behind the best other."""
    names = sorted({name for policies in found.values() for name in policies}, key=_order)
    rows = []
    for level, policies in found.items():
        others = [mean(runs) for name, runs in policies.items() if name not in (OURS, "policy off")]
        ours = mean(policies[OURS]) if OURS in policies else None
        ratio = ours / max(others) if ours and others else None
        to_off = ours / mean(policies[OFF]) if ours and OFF in policies else None
        cells = [", ".join(f"{speed:,.0f}" for speed in policies.get(name, ())) for name in names]
        shown = "" if ratio is None else f"**{ratio:.3f}**" if ratio < 0.98 else f"{ratio:.3f}"
        rows.append([level, *cells, shown, "" if to_off is None else f"{to_off:.3f}"])
    return f"{job}, acceptance {note}: tokens per second\n\n" + markdown_lines(
        ["requests", *names, "of the best other", "of off"], rows
    )


def _falls(falls: Cells) -> str:
    columns = ("level", "cell", "note", "drafted_before", "drafted", "steps_to_change")
    rows = [
        [job_of(line), *(line[name] for name in columns)]
        for line in falls
        if line["cell"] != "stock:1"
    ]
    return (
        "Steps until another length is decided, after acceptance has fallen\n\n"
        + markdown_lines(
            [
                "drafts",
                "requests",
                "policy",
                "acceptance",
                "length before",
                "mean length after",
                "steps",
            ],
            rows,
        )
    )


def _rates(arms: Cells) -> str:
    """By rate, all policies; off / it above 1: faster than without speculation."""
    off = {line["rate"]: line["mean_s"] for line in arms if line["arm"] == OFF}
    rows = []
    for line in sorted(arms, key=lambda line: (line["rate"], _order(line["arm"]))):
        ratio = f"{off[line['rate']] / line['mean_s']:.2f}" if line["rate"] in off else ""
        times = (f"{line[name]:.2f}" for name in ("mean_s", "p99_s"))
        rows.append([f"{line['rate']:.1f}", line["arm"], line["requests"], *times, ratio])
    return "Seconds from arrival to last token\n\n" + markdown_lines(
        ["requests/s", "policy", "requests", "mean", "p99", "off / it"], rows
    )


def _batches(lines: Cells) -> str:
    names = ("tokens_per_s", "p50_s", "p99_s")
    rows = [
        [line["note"], line["level"], line["cell"], *(f"{line[name]:,.1f}" for name in names)]
        for line in lines
    ]
    head = ["acceptance", "requests", "policy", "tokens per second", "p50, s", "p99, s"]
    return "All requests at once\n\n" + markdown_lines(head, rows)


def _checks(checks: Cells) -> str:
    rows = [
        [
            line["exact"],
            line["policy"],
            f"{line['equal']} of {line['of']}",
            line.get("verified", ""),
            line.get("accepted", ""),
        ]
        for line in checks
    ]
    return "Greedy tokens\n\n" + markdown_lines(
        ["drafts", "policy", "equal answers", "verified", "accepted"], rows
    )


def markdown_lines(heads: list[str], rows: list[list]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _order(name: str) -> tuple[int, str]:
    return (name != OFF) + 2 * (name == OURS), name


def plot_speeds(lines: Cells, output: Path) -> None:
    """Tokens per second relative to `off`: off, the best and the worst fixed length, SmartSpec.
    ValueError where a curve has no cell."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = speeds(lines, MAIN_JOB, MAIN_NOTE)
    found = {level: p for level, p in found.items() if OFF in p and OURS in p and fixed(p)}
    if not found:
        raise ValueError(
            f"no number of requests has cells of {OFF}, of fixed lengths and of {OURS} in job "
            f"{MAIN_JOB}"
        )
    curves = {
        "no speculation": [1.0] * len(found),
        "best fixed length": [max(fixed(p)) / mean(p[OFF]) for p in found.values()],
        "worst fixed length": [min(fixed(p)) / mean(p[OFF]) for p in found.values()],
        "SmartSpec": [mean(p[OURS]) / mean(p[OFF]) for p in found.values()],
    }
    styles = {
        "no "
        "speculation": "0.5", "best fixed length": "tab:blue", "worst fixed length": "tab:orange",
        "SmartSpec": "tab:green",
    }  # fmt: skip
    figure, axes = pyplot.subplots(figsize=(7, 3.8), layout="constrained")
    for name, values in curves.items():
        is_ours = name == "SmartSpec"
        axes.plot(
            list(found),
            values,
            "o-" if is_ours else "--",
            color=styles[name],
            label=name,
            lw=2.5 if is_ours else 1.5,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(found), list(map(str, found)))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("requests at a time")
    axes.set_ylabel("tokens per second, of no speculation")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
