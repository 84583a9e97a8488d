"""The paper's figures: what they measure is what they say, and a run that was ended goes on."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lab.paper import (
    capacity,
    change,
    latency,
    lengths,
    predictions,
    published,
    rate_step,
    step_fit,
)
from lab.paper.cells import CELLS, FULL, NO_DRAFTER, QUICK
from lab.paper.decisions import StepTable, size_text
from lab.paper.figures import simulated_figures, simulated_sections
from lab.paper.points import Figure, PointFile, measure_missing
from lab.paper.ratios import ratio_of_seeds
from lab.paper.virtual_run import run_virtually
from smartspec.control.log.decision import LogHeader
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import ground_truth_time, simulate_static
from smartspec.sim.static_load import Phase

CELL = CELLS[2]  # short answers


def counted(name: str, settings: list[dict]) -> tuple[Figure, list[dict]]:
    """A figure whose values are the number of its measurement."""
    calls: list[dict] = []

    def measure(one: dict) -> dict:
        calls.append(one)
        return {"number": len(calls)}

    return Figure(name, tuple(settings), measure), calls


def points_of(by_rate: dict[float, dict[str, list[float]]]) -> list:
    """Points of CELL with these mean latencies: by rate and policy, of each seed."""
    common = {"cell": CELL.name, "seconds": 120.0}
    return [
        (common | {"rate": rate, "arm": policy, "seed": seed}, {"mean": mean, "ttft": mean / 10})
        for rate, by_policy in by_rate.items()
        for policy, means in by_policy.items()
        for seed, mean in enumerate(means)
    ]


def test_a_point_is_measured_once_and_found_again_in_another_run(tmp_path):
    figure, calls = counted("a", [{"k": 1}, {"k": 2}])
    measure_missing(PointFile(tmp_path / "points.jsonl"), [figure])
    again = PointFile(tmp_path / "points.jsonl")
    measure_missing(again, [figure])
    assert calls == [{"k": 1}, {"k": 2}]
    assert again.points(figure) == [({"k": 1}, {"number": 1}), ({"k": 2}, {"number": 2})]


def test_a_line_that_breaks_off_is_cut_off_and_measured_again(tmp_path):
    path = tmp_path / "points.jsonl"
    figure, _ = counted("a", [{"k": 1}, {"k": 2}])
    measure_missing(PointFile(path), [figure])
    path.write_text(path.read_text()[:-5])
    file = PointFile(path)
    assert file.missing([figure]) == [(figure, {"k": 2})]
    measure_missing(file, [figure])
    assert [json.loads(line)["settings"] for line in path.read_text().splitlines()] == [
        {"k": 1},
        {"k": 2},
    ]


def test_a_bad_line_is_refused_with_its_number(tmp_path):
    path = tmp_path / "points.jsonl"
    path.write_text('{"figure": "a", "settings": {}, "values": {}}\nnonsense\n')
    with pytest.raises(
        ValueError, match=r"points\.jsonl, line 2 is no measured point .* delete the line"
    ):
        PointFile(path)


def test_every_point_is_another_one_at_rates_around_what_off_can_serve(tmp_path):
    known, figure = PointFile(tmp_path / "points.jsonl"), capacity.capacity_figure(FULL)
    for settings in figure.settings:  # off can serve 20 requests per second everywhere
        known.add(figure.name, settings, {"requests_per_second": 20.0})
    keys = [
        json.dumps([f.name, s], sort_keys=True)
        for f in simulated_figures(known, FULL)
        for s in f.settings
    ]
    assert len(set(keys)) == len(keys)
    of_cell = {
        s["rate"] for s in simulated_figures(known, FULL)[-1].settings if s["cell"] == CELL.name
    }
    assert of_cell == {20.0 * share for share in FULL.shares}


@pytest.mark.parametrize("policy", lengths.POLICIES)
def test_chosen_length_falls_with_the_batch_and_rises_with_acceptance(policy):
    def length_of(acceptance: str, batch: int = 1) -> float:
        settings = {"acceptance": acceptance, "batch": batch, "policy": policy, "num_steps": 160}
        return lengths.measure(lengths.PAIR | settings)["mean_length"]

    by_batch = [length_of("0.7", batch) for batch in (1, 32, 512)]
    assert by_batch[0] > by_batch[1] > by_batch[2]
    assert length_of("0.5") < by_batch[0] < length_of("0.9")


def test_off_alone_takes_the_time_of_its_passes():
    """One request: its prompt's pass, a pass for every other token, and the host's part of each."""
    settings = CELL.scenario | {"rate": 0.001, "policy": "off", "num_requests": 1, "jitter": 0.0}
    values = latency.measure({"cell": CELL.name, "arm": "off"} | settings)
    scenario = Scenario(**settings)
    record = run_virtually(scenario).records[0]
    time, prompt, output = (
        ground_truth_time(scenario),
        record.num_prompt_tokens,
        record.num_output_tokens,
    )
    prefill = time.target.seconds(prompt, prompt, 1, prompt * (prompt + 1) / 2, 1)
    decoding = sum(time.target.seconds(1, prompt + i, 1) for i in range(1, output))
    assert values["mean"] == pytest.approx(
        prefill + decoding + output * scenario.host_seconds, rel=0.01
    )
    assert values["mean_length"] == 0


def test_every_policy_meets_the_same_requests():
    """So that requests can be paired: of equal length with any policy."""
    outputs = []
    for policy in ("off", "fixed:3"):
        run = run_virtually(Scenario(rate=4.0, policy=policy, num_requests=6, **CELL.scenario))
        outputs.append(
            sorted((r.prompt_id, r.num_prompt_tokens, r.num_output_tokens) for r in run.records)
        )
    assert outputs[0] == outputs[1]


def test_latency_table_has_the_worst_point_first_and_the_spread_of_its_seeds():
    of_policy = {policy: [2.0, 4.0] for policy in CELL.policies} | {
        "off": [4.0, 8.0],
        "fixed:5": [1.0, 2.0],
    }
    slower = of_policy | {"off": [1.9, 5.0], "goodput": [2.0, 4.0]}
    section = latency.latency_section(points_of({1: of_policy, 4: slower, 8: {"off": [1.0]}}))
    rows, claim = section.tables[0].rows, section.tables[1].rows
    assert [row[:4] for row in rows] == [
        (CELL.name, "4", "1.15 (0.95 - 1.25), noise", "fixed:5"),
        (CELL.name, "1", "2.00", "fixed:5"),
    ]
    assert rows[0][4] == "0.50" and rows[0][-1] == "2"
    assert (
        "1.15 (0.95 - 1.25), noise in the worst" in section.text[0]
        and "Of 2 points" in section.text[0]
    )
    assert claim == ()  # nothing is slower than off with every seed
    line = {line.label: line for line in section.plots[0].lines}["off"]
    assert (line.y, line.low, line.high) == ((6.0, 3.45, 1.0), (4.0, 1.9, 1.0), (8.0, 5.0, 1.0))


def test_points_at_which_a_fixed_length_is_slower_than_off_are_named_worst_of_goodput_first():
    slow = {policy: [2.0, 4.0] for policy in CELL.policies} | {
        "fixed:7": [6.0, 9.0],
        "goodput": [1.0, 2.0],
    }
    at = {1: slow, 4: slow | {"goodput": [2.0, 4.0]}, 8: slow | {"fixed:7": [2.0, 4.0]}}
    claim = latency.latency_section(points_of(at)).tables[1]
    assert [row[1] for row in claim.rows] == ["4", "1"] and claim.note.startswith("2 of 3 points")
    assert claim.rows[0][2].startswith("fixed:7: 2.50 ") and claim.rows[1][5] == "0.50"


def test_off_without_a_drafter_is_a_row_of_its_own():
    of_policy = {policy: [2.0] for policy in CELL.policies} | {NO_DRAFTER: [1.0], "off": [4.0]}
    bare = latency.latency_section(points_of({17: of_policy})).tables[2]
    assert [row[2:3] + row[4:] for row in bare.rows] == [
        (NO_DRAFTER, "1.00", "0.10"),
        ("off", "4.00", "0.40"),
        ("goodput", "2.00", "0.20"),
    ]
    assert int(bare.rows[0][3].replace(",", "")) > int(bare.rows[1][3].replace(",", ""))


def test_past_saturation_fixed_lengths_are_slower_than_off_with_low_acceptance_and_goodput_is_not():
    """The paper's main claim, in the batch that a server is in then."""
    fields = CELLS[0].scenario | {"batch": 256}
    speeds = {
        policy: simulate_static(
            Scenario(policy=policy, **fields), [Phase(120, 256, context_tokens=325)]
        )
        for policy in ("off", "fixed:1", "fixed:3", "goodput")
    }
    found = {policy: log.expected_goodput(slice(60, None)) for policy, log in speeds.items()}
    assert found["fixed:3"] < 0.7 * found["off"] and found["fixed:1"] < 0.95 * found["off"]
    assert found["goodput"] > 0.98 * found["off"]


def test_what_off_can_serve_is_that_of_a_full_batch():
    """Of the cell's requests: prefill of a prompt, and its share of the passes of an answer."""
    (settings,) = [s for s in capacity.capacity_figure(QUICK).settings if s["cell"] == CELL.name]
    measured = capacity.measure(settings)["requests_per_second"]
    time, prompt, output = ground_truth_time(Scenario(rate=1.0, **CELL.scenario)), 600, 60
    rows = 165  # whose KV fits
    prefill = time.target.seconds(8 * prompt, 8 * prompt, 8, 4 * prompt**2, 8) / 8
    step = time.target.seconds(rows, rows * (prompt + output / 2), rows)
    assert measured == pytest.approx(1 / (prefill + output * step / rows), rel=0.25)


@pytest.mark.parametrize("batch", [1, 8])
def test_the_cell_nearest_the_largest_published_speed_up_gains_up_to_a_quarter_more(batch):
    measured = lengths.measure(lengths.PAIR | lengths.LARGEST | {"batch": batch, "num_steps": 60})
    assert (
        lengths.OVER_OFF < measured["goodput"] / measured["goodput_off"] < 1.25 * lengths.OVER_OFF
    )


def test_a_ratio_is_noise_where_seeds_disagree():
    assert ratio_of_seeds([1.0, 3.0], [2.0, 2.0]).text() == "1.00 (0.50 - 1.50), noise"
    assert not ratio_of_seeds([3.0, 4.0], [2.0, 2.0]).is_noise
    assert ratio_of_seeds([3.0], [2.0]).text() == "1.50"


def test_rates_last_equally_long_and_data_sets_come_equally_often():
    traffic = rate_step.mixed_traffic(rate_step.RATES, 200.0)
    counts = [round(200 * rate) for rate in rate_step.RATES]
    assert len(traffic) == sum(counts)
    ends = traffic.arrival_seconds[np.cumsum(counts) - 1]
    assert np.diff([0, *ends]) == pytest.approx([200] * 3, rel=0.2)
    assert np.bincount(traffic.class_ids) == pytest.approx([len(traffic) / 4] * 4, rel=0.1)
    for number, data_set in enumerate(rate_step.DATA_SETS):
        of_it = traffic.num_output_tokens[traffic.class_ids == number]
        assert of_it.mean() == pytest.approx(data_set.output_tokens, rel=0.2)


def test_lengths_over_time_are_those_of_the_policy_and_the_last_rate_is_beyond_what_off_can_serve():
    figure = rate_step.rate_step_figure(QUICK, 40.0)
    assert figure.settings[0]["rates"] == [1.0, 4.0, 8.0, 48.0]
    short = {"rates": [2.0, 8.0], "seconds_of_rate": 1.0, "policy": "fixed:3", "seed": 0}
    values = rate_step.measure(rate_step.RUN | short)
    known = [length for length in values["length"] if length is not None]
    assert known and max(known) <= 3 and np.mean(known) > 2.5
    assert len(values["means"]) == 2
    (row,) = (
        rate_step.rate_step_section([(short, values), (short | {"policy": "goodput"}, values)])
        .tables[0]
        .rows[:1]
    )
    assert row == ("fixed:3", "2", "1.00")


def test_predictions_of_a_noiseless_machine_are_right_and_a_wrong_profile_is_seen_at_first():
    small = {"num_requests": 12, "jitter": 0.0, "rate": 6.0, "output_tokens": 60}
    of_profile = {
        profile: predictions.measure(predictions.RUN | small | {"profile": profile})
        for profile in (1.0, 2.0)
    }
    assert of_profile[1.0]["early_error"] < 0.1 < of_profile[2.0]["early_error"]
    assert of_profile[2.0]["late_error"] < of_profile[2.0]["early_error"]
    largest = max(of_profile[1.0]["sizes"], key=lambda size: size["num_steps"])
    assert largest["predicted_goodput"] == pytest.approx(largest["measured_goodput"], rel=0.2)


def test_a_decision_log_gives_the_figures_of_its_run(tmp_path):
    table, records = StepTable(), []
    scenario = Scenario(**predictions.RUN | {"num_requests": 4, "output_tokens": 30})
    run_virtually(scenario, on_record=lambda record: (table.add(record), records.append(record)))
    path = tmp_path / "log.jsonl"
    profile = ground_truth_time(scenario).profile().to_dict()
    header = LogHeader("m", "goodput", 8, (scenario.drafter_spec,), profile)
    path.write_text(
        "".join(f"{line}\n" for line in [header.to_json(), *(r.to_json() for r in records)])
    )
    (settings, summary) = predictions.measured_in_log(path)
    assert settings["policy"] == "goodput"
    for size, expected in zip(summary["sizes"], table.summary()["sizes"], strict=True):
        assert size == pytest.approx(expected)


def test_sizes_of_batches_are_named():
    assert [size_text(size) for size in (1, 2, 4, 8)] == ["1", "2", "3 - 4", "5 - 8"]


def test_published_throughput_stands_beside_ours_and_says_what_a_step_takes():
    """Acceptance 0.9, one token: 1.9 tokens a step. Published 1.055 times off, so 1.80 plain steps;
    here 1.9 times."""
    points = [
        ({"acceptance": "0.9", "policy": "off"}, {"tokens_per_second": 1000.0}),
        ({"acceptance": "0.9", "policy": "fixed:1"}, {"tokens_per_second": 1900.0}),
        ({"acceptance": "0.9", "policy": "goodput"}, {"tokens_per_second": 1400.0}),
    ]
    (table,) = published.published_section([], points).tables
    assert table.rows == (
        ("0.9", "fixed:1", "1821", "1900", "1.05", "1.90", "1.80", "1.00"),
        ("0.9", "dynamic: goodput", "2321", "1400", "1.34", "1.40", "-", "-"),
    )


def test_largest_speed_ups_name_their_rates():
    of_policy = {policy: [2.0] for policy in CELL.policies} | {"off": [6.0], "fixed:7": [4.0]}
    (table,) = published.published_section(
        points_of({4: of_policy, 8: of_policy | {"off": [5.0]}}), []
    ).tables
    assert table.rows == ((CELL.name, "3.00 (4/s)", "1.00 (8/s)", "1.00 (8/s)", "2.00 (8/s)"),)


def test_the_best_length_falls_with_the_batch_and_rises_with_acceptance():
    figure = lengths.curve_figure()
    chosen = [s for s in figure.settings if s["batch"] in (1, 128)]
    rows = lengths.curve_section([(s, figure.measure(s)) for s in chosen]).tables[0].rows
    best = {row[0]: int(row[1]) for row in rows}
    assert (
        best["acceptance 0.9, 1 at once"]
        > best["acceptance 0.5, 1 at once"]
        > best["acceptance 0.5, 128 at once"]
    )


def test_a_line_does_not_explain_measured_steps_and_a_line_of_them_is_found():
    steps = step_fit.measured_steps()
    _, r2 = step_fit.fit(steps)
    assert len(steps) > 40 and 0.9 < r2 < 0.99
    exact = [replace(step, milliseconds=2.0 + step.fed / 64 + step.passes) for step in steps]
    assert step_fit.fit(exact)[1] == pytest.approx(1.0)


def test_estimated_acceptance_follows_the_true_one():
    figure = change.change_figure()
    settings = next(s for s in figure.settings if s["batch"] == 8)
    section = change.change_section([(settings, figure.measure(settings))])
    true, told = section.plots[0].lines
    late = [
        e
        for m, e in zip(told.x, told.y, strict=True)
        if change.CHANCES[2][0] - 1 < m < change.CHANCES[2][0]
    ]
    assert set(true.y) == {0.8, 0.4} and np.mean(late) == pytest.approx(0.4, abs=0.1)
    assert "-" not in section.tables[0].rows[0]


def test_sections_are_made_of_what_there_is(tmp_path):
    file = PointFile(tmp_path / "points.jsonl")
    (always,) = simulated_sections(file, FULL)
    assert "linear step time" in always.title
    figure = simulated_figures(file, FULL)[1]
    file.add(
        figure.name, figure.settings[0], {"mean_length": 3.0, "goodput": 2.0, "goodput_off": 1.0}
    )
    section, _ = simulated_sections(file, FULL)
    assert section.tables[1].rows == (("goodput", "0.4", "1", "3.0", "2.000"),)
