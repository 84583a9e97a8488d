"""Predicted against measured: tokens per second, and the time of a step, for start-up profiles that
are right or wrong.

The same sections come from simulated runs and from the decision log of a live one.
"""

from collections.abc import Sequence
from pathlib import Path

from lab.paper.decisions import EARLY_STEPS, StepTable, size_text
from lab.paper.points import Figure, Point, Settings, Values
from lab.paper.virtual_run import run_virtually
from smartspec.control.log.recorded_log import RecordedLog
from smartspec.report.page_parts import Line, Plot, Section, Table
from smartspec.sim.scenario import Scenario

NAME = "predictions"
PROFILES: tuple[float | str, ...] = (1.0, 0.5, 2.0, "no-context")
# Few requests at once in the beginning, 32 in the end: a closed loop would show one size of batch
# alone.
RUN = {
    "model": "vicuna-7b",
    "draft_model": "vicuna-160m",
    "hardware": "a100-80g",
    "drafter": "model",
    "acceptance": "0.6/8/2",
    "rate": 12.0,
    "num_requests": 120,
    "policy": "goodput",
}


def prediction_figure(run: dict | None = None) -> Figure:
    """A run for every start-up profile."""
    settings = [(RUN | (run or {})) | {"profile": profile} for profile in PROFILES]
    return Figure(NAME, tuple(settings), measure)


def measure(settings: Settings) -> Values:
    """StepTable.summary of a simulated run."""
    table = StepTable()
    run_virtually(Scenario(**settings), on_record=table.add)
    return table.summary()


def measured_in_log(path: Path) -> Point:
    """The same of a decision log. ValueError as RecordedLog, and on one without a decoding step;
    OSError if it cannot be read."""
    log = RecordedLog(path)
    summary = StepTable.of(log).summary()
    if not summary["sizes"]:
        raise ValueError(
            f"{path} holds no step that only decodes: let the server answer requests before it is "
            "stopped"
        )
    return {"profile": 1.0, "policy": log.header.policy, "model": log.header.model}, summary


def goodput_section(points: Sequence[Point], place: str = "simulated") -> Section:
    """Predicted and measured goodput by size of batch, with the profile that is right."""
    settings, summary = points[0]
    sizes = summary["sizes"]
    x = tuple(float(size["largest"]) for size in sizes)
    lines = tuple(
        Line(name, x, tuple(size[f"{name}_goodput"] for size in sizes))
        for name in ("predicted", "measured")
    )
    rows = sorted(
        sizes, key=lambda size: -abs(size["predicted_goodput"] / size["measured_goodput"] - 1)
    )
    return Section(
        title=f"Predicted against measured goodput ({place})",
        text=(
            f"{settings['model']}, policy {settings['policy']}. Predicted: expected tokens of the "
            "drafts that were verified, over the predicted time of the step, before it ran. "
            "Measured: emitted tokens over seconds. Steps with prefill are left out.",
        ),
        plots=(
            Plot(
                "Goodput by batch size",
                "requests (up to)",
                "tokens per second",
                lines,
                log_x=True,
                log_y=True,
            ),
        ),
        tables=(
            Table(
                "Worst size first",
                ("requests", "steps", "predicted", "measured", "error"),
                tuple(
                    (
                        size_text(size["largest"]),
                        str(size["num_steps"]),
                        f"{size['predicted_goodput']:.0f}",
                        f"{size['measured_goodput']:.0f}",
                        f"{size['predicted_goodput'] / size['measured_goodput'] - 1:+.1%}",
                    )
                    for size in rows
                ),
                "A size of few steps has few tokens: its error is chance.",
            ),
        ),
        command="python -m lab.paper",
    )


def time_section(points: Sequence[Point], place: str = "simulated") -> Section:
    """Error of the predicted time of a step by size of batch, for every profile."""
    lines = [
        Line(
            _profile_text(settings["profile"]),
            tuple(float(size["largest"]) for size in summary["sizes"]),
            tuple(100 * size["median_error"] for size in summary["sizes"]),
        )
        for settings, summary in points
    ]
    return Section(
        title=f"Error of the time model ({place})",
        text=(
            "Median of |predicted / measured - 1| over the steps that only decode. The time model "
            "is a start-up profile that every measured step corrects. A wrong profile shows what "
            "the correction is worth: times half or twice as long, or none for the length of "
            "contexts.",
        ),
        plots=(
            Plot(
                "Median error by batch size",
                "requests (up to)",
                "error of a step's time, %",
                tuple(lines),
                log_x=True,
            ),
        ),
        tables=(_time_table(points),),
        command="python -m lab.paper",
    )


def _time_table(points: Sequence[Point]) -> Table:
    rows = [
        (size["median_error"], settings["profile"], size)
        for settings, summary in points
        for size in summary["sizes"]
    ]
    early = "; ".join(
        f"{_profile_text(settings['profile'])} {summary['early_error']:.1%}"
        + (f" and {summary['late_error']:.1%}" if summary["late_error"] is not None else "")
        for settings, summary in points
        if summary["early_error"] is not None
    )
    return Table(
        "Worst first",
        ("profile", "requests", "steps", "median error", "p90 error", "predicted / measured - 1"),
        tuple(
            (
                _profile_text(profile),
                size_text(size["largest"]),
                str(size["num_steps"]),
                f"{size['median_error']:.1%}",
                f"{size['p90_error']:.1%}",
                f"{size['seconds_bias']:+.1%}",
            )
            for _, profile, size in sorted(rows, key=lambda row: -row[0])
        ),
        f"Median error of the first {EARLY_STEPS} steps and of all later ones: {early}.",
    )


def _profile_text(profile: float | str) -> str:
    if isinstance(profile, str):
        return f"{profile} profile"
    return "right profile" if profile == 1 else f"profile x {profile:g}"
