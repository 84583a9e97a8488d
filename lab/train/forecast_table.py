"""What `python -m lab.train --forecast` prints."""

from pathlib import Path

FACTORS = (1, 2, 4, 10)


def print_forecast(folder: Path, costs: Path | None) -> None:
    """A line for each factor of the tokens trained so far. costs: a decision log, for tokens per
    second."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from lab.train.forecast import forecast, miss_of_second_half, read_curve, speeds
    from smartspec.control.latency.model import LatencyModel
    from smartspec.control.log.recorded_log import RecordedLog

    curve = read_curve(folder / "curve.jsonl")
    profile = None if costs is None else LatencyModel.from_dict(RecordedLog(costs).header.profile)
    columns = [
        "answer tokens",
        "tokens a step",
        "90 % interval",
        *(["tokens/s", "length"] if profile else []),
    ]
    table = Table(*columns, title=f"{folder}, chain of {curve.survival.shape[1]}")
    for found in forecast(curve, [int(curve.tokens[-1] * factor) for factor in FACTORS]):
        cells = [
            f"{found.tokens:,}",
            f"{found.emitted:.2f}",
            f"{found.low:.2f} to {found.high:.2f}",
        ]
        if profile:
            by_length = speeds(profile, found.survival)
            best = int(by_length.argmax())
            bounds = [speeds(profile, found.survival * share)[best] for share in _shares(found)]
            cells += [f"{by_length[best]:.1f} ({bounds[0]:.1f} to {bounds[1]:.1f})", str(best)]
        table.add_row(*cells)
    Console().print(table)
    share = np.log10(curve.tokens[-1] / curve.tokens[max(1, len(curve.tokens) // 2 - 1)])
    print(
        "fitted to its first half, the law misses the last line by "
        f"{miss_of_second_half(curve):+.2f} tokens a step, {share:.2f} decades later"
    )


def _shares(found) -> tuple[float, float]:
    """Of the forecast survival, that at both ends of the interval."""
    gained = max(found.emitted - 1.0, 1e-9)
    return (found.low - 1.0) / gained, (found.high - 1.0) / gained
