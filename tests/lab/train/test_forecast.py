"""`python -m lab.train --forecast`: the log-linear law of acceptance, fitted to a learning
curve."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from lab.train.__main__ import app
from lab.train.forecast import forecast, miss_of_second_half, read_curve, speeds
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.log.decision import LogHeader
from smartspec.control.records import DrafterSpec

TOKENS = [100_000, 200_000, 400_000, 800_000, 1_600_000]


def write_curve(folder, first, noise=0.0):
    """Lines whose first position is right with that chance by tokens, and the second in half of
    those cases."""
    random = np.random.default_rng(1)
    lines = [
        {
            "tokens": n,
            "acceptance": [float(first(n) + noise * random.standard_normal()), 0.5],
            "loss": 1.0,
        }
        for n in TOKENS
    ]
    (folder / "curve.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder / "curve.jsonl"


def law(tokens):
    return 0.2 + 0.1 * np.log10(tokens / 1e5)


def test_a_curve_that_follows_the_law_is_forecast_exactly(tmp_path):
    curve = read_curve(write_curve(tmp_path, law))
    (found,) = forecast(curve, [16_000_000])
    expected = 1 + 1.5 * law(16_000_000)
    assert [found.emitted, found.low, found.high] == pytest.approx(3 * [expected])
    assert miss_of_second_half(curve) == pytest.approx(0.0, abs=1e-9)


def test_the_interval_grows_with_the_distance_and_with_the_noise(tmp_path):
    widths = []
    for noise in (0.005, 0.03):
        found = forecast(read_curve(write_curve(tmp_path, law, noise)), [1_600_000, 16_000_000])
        assert all(each.low < each.emitted < each.high for each in found)
        widths.append([each.high - each.low for each in found])
    assert widths[0][0] < widths[0][1] < widths[1][1]


def test_a_curve_that_flattens_out_is_seen_to_miss(tmp_path):
    curve = read_curve(write_curve(tmp_path, lambda n: min(law(n), law(300_000))))
    assert miss_of_second_half(curve) < -0.05


def test_tokens_per_second_weigh_drafts_against_what_they_cost():
    costs = LatencyModel(CostCurve.linear(0.009, 0.001), (CostCurve.linear(0.002, 0.0),))
    by_length = speeds(costs, np.array([0.5, 0.1]))
    assert by_length == pytest.approx([1 / 0.010, 1.5 / 0.013, 1.6 / 0.016])
    assert by_length.argmax() == 1
    with pytest.raises(ValueError, match="no pass of a head"):
        speeds(LatencyModel(CostCurve.linear(0.009, 0.001)), np.array([0.5]))


def test_the_command_prints_it_and_names_what_is_missing(tmp_path):
    write_curve(tmp_path, law, 0.01)
    base = ["smollm2-135m-instruct", "--data", str(tmp_path)]
    shown = CliRunner().invoke(app, [*base, "--forecast", str(tmp_path)])
    assert (
        shown.exit_code == 0
        and "16,000,000" in shown.output
        and "misses the last line" in shown.output
    )
    costs = LatencyModel(
        CostCurve.linear(0.009, 0.001), (None, CostCurve.linear(0.002, 0.0))
    ).to_dict()
    header = LogHeader(
        "m", "goodput", 2, (DrafterSpec("lookup"), DrafterSpec("head", has_passes=True)), costs
    )
    (tmp_path / "log.jsonl").write_text(header.to_json() + "\n")
    timed = CliRunner().invoke(
        app, [*base, "--forecast", str(tmp_path), "--costs", str(tmp_path / "log.jsonl")]
    )
    assert timed.exit_code == 0 and "tokens/s" in timed.output
    (tmp_path / "curve.jsonl").write_text(json.dumps({"tokens": 5, "acceptance": [0.1]}))
    with pytest.raises(ValueError, match="a forecast needs 4"):
        read_curve(tmp_path / "curve.jsonl")
    with pytest.raises(ValueError, match="cannot read"):
        read_curve(tmp_path / "gone" / "curve.jsonl")
    (tmp_path / "curve.jsonl").write_text("no json")
    with pytest.raises(ValueError, match="is no learning curve"):
        read_curve(tmp_path / "curve.jsonl")
