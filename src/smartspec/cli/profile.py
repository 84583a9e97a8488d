"""`smartspec doctor --plot`: what a pass of the model costs on this machine, as a table and a
plot."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smartspec.control.latency.cost_curve import CostCurve, ProfileSample
    from smartspec.engine.runtime.config import EngineConfig


def show_profile(config: "EngineConfig", plot: Path) -> None:
    """Measure the cost model anew (at most 20 s) and show measured and fitted times. ValueError for
    a plot that cannot be written."""
    from smartspec.cli.output_files import check_plot
    from smartspec.control.latency.cost_curve import CostCurve
    from smartspec.engine.runtime.build import load_models
    from smartspec.engine.runtime.passes import measure_profile

    check_plot("--plot", plot)
    models = load_models(config, report=print)
    print("measuring, at most 20 seconds")
    measured = measure_profile(
        models.target, models.profiled, max_batch=config.max_batch, kv_tokens=models.kv_tokens
    )
    curves = {f"target {config.model}": (measured.target, CostCurve.fit(list(measured.target)))}
    for each, samples in zip(models.profiled, measured.drafts, strict=True):
        curves[f"draft model {each.spec.name}"] = (samples, CostCurve.fit(list(samples)))
    for name, (samples, curve) in curves.items():
        _print_table(name, samples, curve)
    _draw(curves, plot)
    print(f"plot written to {plot}")


def _print_table(title: str, samples: "tuple[ProfileSample, ...]", curve: "CostCurve") -> None:
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for heading in (
        "rows",
        "new tokens per row",
        "context per row",
        "measured ms",
        "fitted ms",
        "error",
    ):
        table.add_column(heading, justify="right")
    errors = curve.relative_errors(list(samples))
    for sample, error in sorted(
        zip(samples, errors, strict=True), key=lambda pair: _order(pair[0])
    ):
        rows, num_new, context = _order(sample)
        measured, fitted = 1000 * sample.seconds, 1000 * sample.seconds * (1 + error)
        table.add_row(
            str(rows),
            str(num_new),
            str(context),
            f"{measured:.1f}",
            f"{fitted:.1f}",
            f"{error:+.1%}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"ms = {1000 * curve.constant:.2f} + {1000 * curve.per_row:.3f} x rows + curve(fed tokens) "
        f"+ {1000 * curve.per_context_token:.5f} x context tokens + "
        f"{1000 * curve.per_attended_token:.6f} x attended tokens; median error "
        f"{np.median(np.abs(errors)):.1%}"
    )


def _order(sample: "ProfileSample") -> tuple[int, int, int]:
    """(rows, new tokens per row, context per row)."""
    num_new = sample.fed_tokens // sample.rows
    return sample.rows, num_new, sample.context_tokens // sample.rows - num_new


def _draw(curves: dict, path: Path) -> None:
    """Pass time over fed tokens: a dot per measurement, and the fitted curve through rows of one
    token, context 128."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for name, (samples, curve) in curves.items():
        fed = np.array([s.fed_tokens for s in samples])
        dots = axes.scatter(
            fed, [1000 * s.seconds for s in samples], s=14, label=f"{name}, measured"
        )
        sizes = np.arange(1, fed.max() + 1)
        for rows, style in ((1, "-"), (8, "--")):
            line = 1000 * curve.seconds(sizes[rows - 1 :], rows * 128.0, rows)
            label = f"{name}, fitted, {rows} row{'s' * (rows > 1)} at context 128"
            axes.plot(
                sizes[rows - 1 :],
                line,
                style,
                color=dots.get_facecolor()[0],
                linewidth=1,
                label=label,
            )
    axes.set(xscale="log", yscale="log", xlabel="tokens fed in one pass", ylabel="milliseconds")
    axes.set_xticks([1, 2, 4, 8, 16, 32, 64, 128, 256], [1, 2, 4, 8, 16, 32, 64, 128, 256])
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
