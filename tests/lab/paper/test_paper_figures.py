"""The paper's figures: what they measure is what they say, and a run that was ended goes on."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lab.paper import latency, lengths, predictions, published, rate_step
from lab.paper.cells import CELLS, DRAFT_MODEL, LOOKUP
from lab.paper.decisions import StepTable, size_text
from lab.paper.figures import simulated_figures, simulated_sections
from lab.paper.points import Figure, PointFile, measure_missing
from lab.paper.ratios import paired_ratio
from lab.paper.virtual_run import run_virtually
from smartspec.control.log.decision import LogHeader
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import _kv_tokens as kv_tokens
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


def length_of(acceptance: float, batch: int, policy: str = "goodput", num_steps: int = 160) -> float:
    settings = {"acceptance": str(acceptance), "batch": batch, "policy": policy, "num_steps": num_steps}
    return lengths.measure(lengths.PAIR | settings)["mean_length"]


def test_a_point_is_measured_once_and_found_again_in_another_run(tmp_path):
    figure, calls = counted("a", [{"k": 1}, {"k": 2}])
    measure_missing(PointFile(tmp_path / "points.jsonl"), [figure])
    again = PointFile(tmp_path / "points.jsonl")
    measure_missing(again, [figure])
    assert calls == [{"k": 1}, {"k": 2}]
    assert again.points(figure) == [({"k": 1}, {"number": 1}), ({"k": 2}, {"number": 2})]


def test_what_was_measured_before_ctrl_c_is_kept(tmp_path):
    def measure(settings: dict) -> dict:
        if settings["k"] == 2:
            raise KeyboardInterrupt
        return {}

    figure = Figure("a", ({"k": 1}, {"k": 2}), measure)
    with pytest.raises(KeyboardInterrupt):
        measure_missing(PointFile(tmp_path / "points.jsonl"), [figure])
    assert PointFile(tmp_path / "points.jsonl").missing([figure]) == [(figure, {"k": 2})]


def test_a_line_that_breaks_off_is_cut_off_and_measured_again(tmp_path):
    path = tmp_path / "points.jsonl"
    figure, _ = counted("a", [{"k": 1}, {"k": 2}])
    measure_missing(PointFile(path), [figure])
    path.write_text(path.read_text()[:-5])
    file = PointFile(path)
    assert file.missing([figure]) == [(figure, {"k": 2})]
    measure_missing(file, [figure])
    assert [json.loads(line)["settings"] for line in path.read_text().splitlines()] == [{"k": 1}, {"k": 2}]


def test_a_bad_line_is_refused_with_its_number(tmp_path):
    path = tmp_path / "points.jsonl"
    path.write_text('{"figure": "a", "settings": {}, "values": {}}\nnonsense\n')
    with pytest.raises(ValueError, match=r"points\.jsonl, line 2 is no measured point .* delete the line"):
        PointFile(path)


def test_every_point_of_every_figure_is_another_one_and_can_be_written():
    keys = [json.dumps([f.name, s], sort_keys=True) for f in simulated_figures() for s in f.settings]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("policy", lengths.POLICIES)
def test_chosen_length_falls_with_the_batch_and_rises_with_acceptance(policy):
    by_batch = [length_of(0.7, batch, policy) for batch in (1, 32, 512)]
    assert by_batch[0] > by_batch[1] > by_batch[2]
    assert length_of(0.5, 1, policy) < by_batch[0] < length_of(0.9, 1, policy)


def test_off_alone_takes_the_time_of_its_passes():
    """One request: its prompt's pass, a pass for every other token, and the host's part of each."""
    settings = {"cell": CELL.name} | CELL.scenario | {"rate": 0.001, "policy": "off", "num_requests": 1, "jitter": 0.0}
    values = latency.measure(settings)
    scenario = Scenario(**{name: value for name, value in settings.items() if name != "cell"})
    record = run_virtually(scenario).records[0]
    time, prompt, output = ground_truth_time(scenario), record.num_prompt_tokens, record.num_output_tokens
    prefill = time.target.seconds(prompt, prompt, 1, prompt * (prompt + 1) / 2, 1)
    decoding = sum(time.target.seconds(1, prompt + i, 1) for i in range(1, output))
    assert values["latencies"] == [pytest.approx(prefill + decoding + output * scenario.host_seconds, rel=0.01)]
    assert values["mean_length"] == 0


def test_every_policy_meets_the_same_requests():
    """So that requests can be paired: of equal length with any policy."""
    outputs = []
    for policy in ("off", "fixed:3"):
        run = run_virtually(Scenario(rate=4.0, policy=policy, num_requests=6, **CELL.scenario))
        outputs.append(sorted((r.prompt_id, r.num_prompt_tokens, r.num_output_tokens) for r in run.records))
    assert outputs[0] == outputs[1]


def test_latency_table_has_the_worst_cell_first_and_the_ratios_of_its_points():
    of_policy = {policy: [2.0, 4.0] for policy in CELL.policies} | {"off": [4.0, 8.0], "fixed:5": [1.0, 2.0]}
    at = {1: of_policy, 4: of_policy | {"goodput": [1.0, 2.0]}}
    points = [
        ({"cell": CELL.name, "rate": rate, "policy": policy}, {"latencies": latencies})
        for rate, by_policy in at.items()
        for policy, latencies in by_policy.items()
    ]
    section = latency.latency_section(points)
    claim, rows = section.tables[0].rows, section.tables[1].rows
    assert claim == ()  # nothing is slower than off
    assert [row[1] for row in rows] == ["1", "4"]
    assert rows[0][2].startswith("2.00 ") and rows[0][3] == "fixed:5" and rows[0][4].startswith("0.50 ")
    assert rows[1][4].startswith("1.00 ") and "noise" in rows[1][4]
    assert {line.label: line.y for line in section.plots[0].lines}["goodput"] == (3.0, 1.5)


def test_points_at_which_a_fixed_length_is_slower_than_off_are_named_worst_of_goodput_first():
    slow = {policy: [2.0, 4.0] for policy in CELL.policies} | {"fixed:7": [6.0, 9.0], "goodput": [1.0, 2.0]}
    at = {1: slow, 4: slow | {"goodput": [2.0, 4.0]}, 8: slow | {"fixed:7": [2.0, 4.0]}}
    points = [
        ({"cell": CELL.name, "rate": rate, "policy": policy}, {"latencies": latencies})
        for rate, by_policy in at.items()
        for policy, latencies in by_policy.items()
    ]
    claim = latency.latency_section(points).tables[0]
    assert [row[1] for row in claim.rows] == ["4", "1"] and claim.note.startswith("2 of 3 points")
    assert claim.rows[0][2].startswith("fixed:7: 2.50 ") and claim.rows[1][5].startswith("0.50 ")


def test_past_saturation_fixed_lengths_are_slower_than_off_with_low_acceptance_and_goodput_is_not():
    """The paper's main claim, in the batch that a server is in then."""
    fields = CELLS[0].scenario | {"batch": 256}
    speeds = {
        policy: simulate_static(Scenario(policy=policy, **fields), [Phase(120, 256, context_tokens=325)])
        for policy in ("off", "fixed:1", "fixed:3", "goodput")
    }
    found = {policy: log.expected_goodput(slice(60, None)) for policy, log in speeds.items()}
    assert found["fixed:3"] < 0.7 * found["off"] and found["fixed:1"] < 0.95 * found["off"]
    assert found["goodput"] > 0.98 * found["off"]


def test_every_cell_has_a_rate_beyond_what_plain_decoding_can_serve():
    """Of a full batch: prefill of a prompt, and its share of the passes of an answer."""
    for cell in CELLS:
        scenario = Scenario(rate=1.0, **cell.scenario)
        time, prompt, output = ground_truth_time(scenario), scenario.prompt_tokens, scenario.output_tokens
        rows = min(scenario.max_batch, int(kv_tokens(scenario) / (prompt + output / 2)))
        prefill = time.target.seconds(8 * prompt, 8 * prompt, 8, 4 * prompt**2, 8) / 8
        step = time.target.seconds(rows, rows * (prompt + output / 2), rows)
        assert cell.rates[-1] > 1 / (prefill + output * step / rows) > cell.rates[0], cell.name


@pytest.mark.parametrize("batch", [1, 8])
def test_the_cell_nearest_the_largest_published_speed_up_gains_up_to_a_quarter_more(batch):
    measured = lengths.measure(lengths.PAIR | lengths.LARGEST | {"batch": batch, "num_steps": 60})
    assert lengths.OVER_OFF < measured["goodput"] / measured["goodput_off"] < 1.25 * lengths.OVER_OFF


def test_a_ratio_of_equal_latencies_is_noise_and_a_clear_one_is_not():
    seconds = np.random.default_rng(0).random(50) + 1
    assert paired_ratio(seconds, seconds[::-1]).is_noise
    assert not paired_ratio(2 * seconds, seconds).is_noise
    assert paired_ratio(2 * seconds, seconds).value == pytest.approx(2.0)


def test_rates_last_equally_long_and_data_sets_come_equally_often():
    traffic = rate_step.mixed_traffic(200.0)
    counts = [200 * rate for rate in rate_step.RATES]
    assert len(traffic) == sum(counts)
    ends = traffic.arrival_seconds[np.cumsum(counts) - 1]
    assert np.diff([0, *ends]) == pytest.approx([200] * 3, rel=0.2)
    assert np.bincount(traffic.class_ids) == pytest.approx([len(traffic) / 4] * 4, rel=0.1)
    for number, data_set in enumerate(rate_step.DATA_SETS):
        of_it = traffic.num_output_tokens[traffic.class_ids == number]
        assert of_it.mean() == pytest.approx(data_set.output_tokens, rel=0.2)


def test_lengths_over_time_are_those_of_the_policy():
    values = rate_step.measure(rate_step.RUN | {"policy": "fixed:3", "seconds_of_rate": 0.7})
    known = [length for length in values["length"] if length is not None]
    assert known and max(known) <= 3 and np.mean(known) > 2.5
    assert len(values["latencies"]) == len(values["arrivals"]) == 10


def test_predictions_of_a_noiseless_machine_are_right_and_a_wrong_profile_is_seen_at_first():
    small = {"num_requests": 12, "jitter": 0.0, "rate": 6.0, "output_tokens": 60}
    of_profile = {
        profile: predictions.measure(predictions.RUN | small | {"profile": profile}) for profile in (1.0, 2.0)
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
    path.write_text("".join(f"{line}\n" for line in [header.to_json(), *(r.to_json() for r in records)]))
    (settings, summary) = predictions.measured_in_log(path)
    assert settings["policy"] == "goodput"
    for size, expected in zip(summary["sizes"], table.summary()["sizes"], strict=True):
        assert size == pytest.approx(expected)


def test_sizes_of_batches_are_named():
    assert [size_text(size) for size in (1, 2, 4, 8)] == ["1", "2", "3 - 4", "5 - 8"]


def test_the_bound_is_that_of_tokens_and_time():
    """Free drafts, all accepted: at most 9 tokens a pass. None accepted: nothing is won."""
    cell = next(cell for cell in CELLS if cell.style == LOOKUP)
    assert published.bound_of(cell, 0.0) == 1.0
    everywhere = replace(cell, scenario=cell.scenario | {"found_share": 1.0})
    assert 7 < published.bound_of(everywhere, 1.0) < 9
    assert 1 < published.bound_of(cell, 1.0) < 2  # half of the positions find nothing


def test_a_dear_draft_model_bounds_the_gain():
    by_name = {cell.name: cell for cell in CELLS if cell.style == DRAFT_MODEL}
    cheap, dear = (by_name[name] for name in ("Vicuna-33B + 160M, chat, 4 A100", "Llama-2-70B + 7B, chat, 4 A100"))
    assert published.bound_of(dear, 0.8) < published.bound_of(cheap, 0.8)


def test_published_throughput_stands_beside_ours_and_says_what_a_step_takes():
    """Acceptance 0.9, one token: 1.9 tokens a step. Published 1.055 times off, so 1.80 plain steps; here 1.9 times."""
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


def test_largest_speed_ups_name_their_cells():
    of_policy = {policy: [2.0] for policy in CELL.policies} | {"off": [6.0], "fixed:7": [4.0]}
    points = [
        ({"cell": CELL.name, "rate": 4, "policy": policy}, {"latencies": latencies})
        for policy, latencies in of_policy.items()
    ]
    section = published.published_section(points, [])
    assert f"over off 3.00 (4/s): {CELL.name}" in section.text[-1]
    assert f"over the worst fixed 2.00 (4/s): {CELL.name}" in section.text[-1]


def test_sections_are_made_of_what_there_is(tmp_path):
    file = PointFile(tmp_path / "points.jsonl")
    assert simulated_sections(file) == ()
    figure = simulated_figures()[0]
    file.add(figure.name, figure.settings[0], {"mean_length": 3.0, "goodput": 2.0, "goodput_off": 1.0})
    (section,) = simulated_sections(file)
    assert section.tables[1].rows == (("goodput", "0.4", "1", "3.0", "2.000"),)
