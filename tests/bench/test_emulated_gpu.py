"""The parts of an emulated GPU that need no vLLM: step times, accepted drafts, verification,
tables, records."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import vllm_gpu
from lib.emulated_gpu import (
    acceptance,
    adaptive,
    cells,
    clock,
    published,
    report,
    setups,
    step_time,
    tables,
)

from smartspec.control import CostCurve, LatencyModel

linear = CostCurve.linear
SIZE = step_time.StepSize(
    fed=8, rows=2, context=1000, attended=4000.0, scored=8, is_captured=True, draft_tokens=3
)
NAMES = ["off", "fixed:3", "goodput"]
CELL = cells.Cell("8b-h100", "eagle3", "closed:32", "off")


def begun(stated) -> np.ndarray:
    """Numbers of requests that have begun."""
    numbers = np.arange(4000)
    for number in numbers:
        stated.begin(int(number))
    return numbers


def records_of(figure: str, loads: dict[str, tuple[float, ...]]) -> dict:
    """Records of NAMES under each load, that hold this figure."""
    return {
        replace(CELL, load=load, policy=name): {figure: value}
        for load, values in loads.items()
        for name, value in zip(NAMES, values, strict=True)
    }


def test_a_step_takes_the_targets_pass_and_one_draft_pass_per_token():
    time = step_time.GPUTime(linear(10.0, 1.0), linear(2.0, 0.1), piecewise=5.0)
    assert time.target_seconds(SIZE) == pytest.approx(18.0)
    assert time.target_seconds(replace(SIZE, is_captured=False)) == pytest.approx(23.0)
    # The first pass feeds what the target was fed, further ones a token per request.
    assert time.draft_seconds(SIZE) == pytest.approx(2.8 + 2 * 2.2)
    assert time.draft_seconds(replace(SIZE, draft_tokens=0)) == pytest.approx(2.8)


def test_a_block_drafter_makes_one_pass_and_lookup_none():
    block = step_time.GPUTime(linear(10.0, 1.0), linear(2.0, 0.1), drafts_in_one_pass=True)
    assert block.draft_seconds(SIZE) == pytest.approx(2.0 + 0.1 * (8 + 2 * 3))
    assert step_time.GPUTime(linear(10.0, 1.0)).draft_seconds(SIZE) == 0.0


def test_steps_on_the_8b_are_those_of_a_real_h100():
    """Without drafts and prefill: within 7 %, the goal, and 15 % with 128 requests, where the goal
    is missed."""
    steps = published.measured_steps()
    assert [step.requests for step in steps] == [1, 4, 16, 64, 128]
    for step in steps:
        tolerance = 0.07 if step.requests < 128 else 0.15
        assert published.emulated_milliseconds(step) == pytest.approx(
            step.milliseconds, rel=tolerance
        )


@pytest.mark.parametrize("name", sorted(setups.SETUPS))
def test_every_setup_holds_its_model_and_each_drafter(name):
    setup = setups.SETUPS[name]
    plain = setup.num_kv_blocks(None)
    for drafter, known in setups.DRAFTERS.items():
        assert 0 < setup.num_kv_blocks(drafter) <= plain
        assert (setup.gpu_time(drafter).draft is None) == (not known.has_passes)


def test_a_profile_that_the_plugin_has_kept_is_a_setup(tmp_path):
    path = tmp_path / "costs.json"
    latency = LatencyModel(linear(10.0, 1.0), (linear(2.0, 0.5),))
    path.write_text(json.dumps({"key": {}, "cost_model": latency.to_dict()}))
    setup = setups.setup_of(str(path))
    assert setup.gpu_time("eagle3").target_seconds(SIZE) == pytest.approx(18.0)
    assert setup.gpu_time("eagle3").draft_seconds(replace(SIZE, draft_tokens=1)) == pytest.approx(
        6.0
    )
    path.write_text(json.dumps(LatencyModel(linear(10.0, 1.0)).to_dict()))
    assert setup.gpu_time("ngram").draft is None
    with pytest.raises(ValueError, match="no cost of draft passes"):
        setup.gpu_time("eagle3")
    path.write_text("[]")
    with pytest.raises(ValueError, match="is no file of step times"):
        setup.gpu_time(None)
    with pytest.raises(ValueError, match="unknown setup '8b'"):
        setups.setup_of("8b")


def test_drafts_are_right_as_often_as_stated_and_the_same_whatever_was_done_before():
    stated = acceptance.StatedAcceptance("0.8", 4, seed=1)
    numbers = begun(stated)
    right = stated.num_right(numbers, np.full(4000, 7), 0.0)
    assert np.mean(right >= 1) == pytest.approx(0.8, abs=0.02)
    assert np.mean(right >= 2) == pytest.approx(0.64, abs=0.03)
    again = stated.num_right(numbers[:3], np.full(3, 7), 0.0)
    assert again.tolist() == right[:3].tolist()
    assert stated.tokens(3, 5, 2) == stated.tokens(3, 4, 3)[1:]


def test_lookup_finds_drafts_at_the_stated_share_of_positions():
    stated = acceptance.StatedAcceptance("0.9", 3, seed=0, found_share=0.25)
    numbers = begun(stated)
    found = stated.num_drafted(numbers, np.full(4000, 20))
    assert set(found.tolist()) == {0, 3} and np.mean(found == 3) == pytest.approx(0.25, abs=0.03)
    assert (stated.num_right(numbers, np.full(4000, 20), 0.0) <= found).all()


def test_recorded_texts_are_said_and_looked_up():
    text = acceptance.Text((1, 2, 3, 4, 9), (1, 2, 3, 4, 5))
    texts = acceptance.TextAcceptance([text], 3)
    # After "1 2" the prompt goes on with "3 4 9", the answer with "3 4 5".
    assert texts.num_drafted(np.array([0, 0]), np.array([0, 2])).tolist() == [0, 3]
    assert texts.num_right(np.array([0]), np.array([2]), 0.0).tolist() == [2]
    assert texts.tokens(0, 1, 3) == [2, 3, 4] and texts.tokens(0, 4, 3) == [5, 0, 0]


def test_texts_of_a_file(tmp_path):
    path = tmp_path / "texts.json"
    path.write_text(json.dumps({"texts": {"chat": [[[1, 2], [3]], [[1], []]]}}))
    assert acceptance.read_texts(path) == [acceptance.Text((1, 2), (3,))]
    path.write_text("{}")
    with pytest.raises(ValueError, match="holds no texts"):
        acceptance.read_texts(path)


def test_adaptive_verification_takes_the_likeliest_tokens_that_pay():
    """A token costs a fifth of the constant: it pays while its survival is high enough."""
    time = step_time.GPUTime(linear(1.0, 0.2), linear(0.01, 0.0))
    verification = adaptive.AdaptiveVerification(
        time, max_requests=8, max_tokens=64, max_draft_tokens=3
    )
    confidence = np.array([[0.9, 0.9, 0.9], [0.1, 0.1, 0.1]])
    names, others, drafted = ["a", "b"], np.array([1, 1]), np.array([3, 3])
    first = verification.cut(names, others, drafted, 2, confidence)
    assert first.sum() == 6  # nothing is known of the requests yet: all tokens count as certain
    second = verification.cut(names, others, drafted, 2, confidence)
    assert second.tolist() == [3, 0]


def test_a_table_names_the_fastest_length_of_each_number_of_requests():
    found = {
        replace(CELL, load=f"closed:{level}", policy=f"fixed:{length}"): {
            "tokens_per_second": speed
        }
        for level, speeds in {4: (1, 2, 3), 64: (3, 2, 1)}.items()
        for length, speed in enumerate(speeds)
    }
    cell = replace(CELL, policy="dynamic-sd", load="poisson:3")
    assert tables.dynamic_sd_table(cell, found) == [[1, 16, 2], [17, 256, 0]]
    with pytest.raises(
        ValueError, match="no closed loop of fixed lengths was measured for 70b-4xh100"
    ):
        tables.dynamic_sd_table(replace(cell, setup="70b-4xh100"), found)


def test_records_are_kept_and_not_measured_again(tmp_path):
    path = tmp_path / "records.jsonl"
    records = cells.Records(path)
    records.add(CELL, {"tokens_per_second": 1.0})
    other = replace(CELL, policy="fixed:2")
    again = cells.Records(path)
    assert again.found == {CELL: {"tokens_per_second": 1.0}}
    assert again.missing([CELL, other]) == [other]
    path.write_text("{}\n")
    with pytest.raises(ValueError, match="line 1 is no record"):
        cells.Records(path)


def test_the_worst_cell_comes_first():
    found = records_of(
        "tokens_per_second", {"closed:1": (100, 200, 210), "closed:9": (100, 80, 90)}
    )
    lines = report.speeds(found, NAMES).splitlines()
    assert lines[2] == "| 8b-h100 | eagle3 | closed:9 | 100 | 80 | 90 | 0.900 | 0.90 |"
    assert lines[3] == "| 8b-h100 | eagle3 | closed:1 | 100 | 200 | 210 | 1.050 | 2.10 |"


def test_where_requests_come_at_given_moments_latency_counts():
    loads = {"poisson:4": (2.0, 1.0, 1.0), "trace:/a/b.csv@2": (2.0, 1.0, 1.1)}
    found = records_of("e2e", loads)
    lines = report.latencies(found, NAMES).splitlines()
    assert lines[2] == "| 8b-h100 | eagle3 | trace:b.csv@2 | 2,000 | 1,000 | 1,100 | 1.100 | 0.55 |"
    assert lines[3].startswith("| 8b-h100 | eagle3 | poisson:4 |")
    assert not report.speeds(found, NAMES) and not report.latencies({CELL: {}}, NAMES)


def test_steps_run_one_after_the_other_and_rest_does_not_count_as_idle():
    gpu = clock.Clock()
    start = gpu.run(100.0)
    assert gpu.free == pytest.approx(start + 100.0) and gpu.idle == 0.0
    assert gpu.run(50.0) == pytest.approx(start + 100.0)  # it waits for the first one
    gpu.rest()
    gpu.free = 0.0
    gpu.run(1.0)
    assert gpu.idle == 0.0 and gpu.busy == pytest.approx(151.0)
    gpu.free -= 2.0  # as if two seconds had passed
    gpu.run(1.0)
    assert gpu.idle == pytest.approx(1.0, abs=0.1)


def test_a_measured_profile_begins_each_step_at_the_end_of_the_last():
    gpu = clock.Clock(from_completion=True)
    start = gpu.run(1.0)
    gpu.free -= 5.0
    assert gpu.run(1.0) == pytest.approx(start - 4.0) and gpu.idle == 0.0


def test_vllms_python_may_be_a_relative_path(tmp_path, monkeypatch):
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    # It is started, and then says that there is no such program.
    with pytest.raises(ValueError, match="nothing failed with"):
        vllm_gpu._call("./python", "nothing")
