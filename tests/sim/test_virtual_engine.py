"""Whole simulations: nothing is lost, times add up, seeds repeat, policies share random
numbers."""

from dataclasses import replace

import numpy as np
import pytest

from smartspec.control import CostCurve
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import make_engine, make_traffic, simulate
from smartspec.sim.virtual_engine import Run, VirtualEngine
from smartspec.sim.world.traffic import Traffic, repeated
from smartspec.workload.arrivals import Trace

BUSY = Scenario(
    batch=12, num_requests=40, output_tokens=30, prompt_tokens=100, acceptance="0.9/4,0.3/4"
)
QUIET = replace(BUSY, jitter=0.0)


@pytest.mark.parametrize("drafter", ["model", "lookup", "head"])
@pytest.mark.parametrize("policy", ["off", "fixed:4", "goodput", "perfect-estimates"])
def test_every_request_ends_with_its_output_length(policy, drafter):
    scenario = replace(BUSY, policy=policy, drafter=drafter)
    traffic, outcome = make_traffic(scenario), simulate(scenario)
    records = {record.prompt_id: record for record in outcome.run.records}
    assert len(records) == len(outcome.run.records) == len(traffic)
    for index, (num_prompt, num_output) in enumerate(
        zip(traffic.num_prompt_tokens, traffic.num_output_tokens, strict=True)
    ):
        record = records[str(index)]
        assert (record.num_prompt_tokens, record.num_output_tokens) == (num_prompt, num_output)
        assert record.finish_reason == "stop" and record.error is None
        assert 0 < record.ttft_seconds <= record.end_to_end_seconds
    assert outcome.summary.num_unfinished == 0


def test_memory_pressure_preempts_and_loses_nothing():
    outcome = simulate(replace(BUSY, policy="fixed:4", drafter="lookup", kv_tokens=1600, batch=30))
    assert outcome.summary.num_completed + outcome.summary.num_errors == 40
    assert outcome.summary.num_completed >= 38, "only requests larger than the memory are refused"


def test_a_request_that_can_never_run_is_recorded_as_refused():
    outcome = simulate(replace(BUSY, policy="off", max_model_len=150))
    refused = [record for record in outcome.run.records if record.error is not None]
    assert refused and all("exceed the context of 150 tokens" in record.error for record in refused)
    assert len(outcome.run.records) == 40


def linear_engine(policy: str, num_requests: int, **changes):
    """An engine whose target pass takes 10 ms and 1 ms a token, its host 2 ms, without noise."""
    scenario = replace(QUIET, policy=policy, drafter="lookup", num_requests=num_requests, **changes)
    engine = make_engine(scenario)
    engine.executor.time = replace(
        engine.executor.time, target=CostCurve.linear(0.010, 0.001), host_seconds=0.002
    )
    return engine


def serve(engine, traffic):
    run = Run()
    engine.serve(traffic, run)
    return {int(record.prompt_id): record for record in run.records}, run.totals


def traffic_of(prompts, outputs, arrivals):
    return Traffic(
        np.array(prompts), np.array(outputs), np.zeros(len(prompts), int), np.array(arrivals, float)
    )


def test_plain_decoding_takes_the_times_computed_by_hand():
    engine = linear_engine("off", 2)
    records, totals = serve(engine, traffic_of([20, 5], [3, 2], [1.0, 1.005]))
    prefill = 0.010 + 0.020 + 0.002
    # The second request arrives during the first one's prefill and starts at its end, beside one
    # decoding row.
    mixed = 0.010 + 0.006 + 0.002
    both = 0.010 + 0.002 + 0.002
    assert records[0].ttft_seconds == pytest.approx(prefill)
    assert records[0].end_to_end_seconds == pytest.approx(prefill + mixed + both)
    assert records[1].start_seconds == 1.005
    assert records[1].ttft_seconds == pytest.approx(prefill + mixed - 0.005)
    assert records[1].end_to_end_seconds == pytest.approx(prefill + mixed + both - 0.005)
    assert totals.num_decode_rows == 3


def test_an_idle_engine_starts_when_the_next_request_comes():
    engine = linear_engine("off", 2)
    records, _ = serve(engine, traffic_of([20, 20], [1, 1], [0.0, 5.0]))
    assert [records[i].end_to_end_seconds for i in range(2)] == pytest.approx([0.032, 0.032])


def test_perfect_drafts_take_one_step_for_k_plus_one_tokens():
    engine = linear_engine("fixed:4", 1, acceptance="1.0")
    records, totals = serve(engine, traffic_of([10], [11], [0.0]))
    # One token from the prefill, then 5 + 5 of 4 draft tokens each.
    assert totals.num_decode_rows == 2
    assert records[0].end_to_end_seconds == pytest.approx(0.022 + 2 * (0.010 + 0.005 + 0.002))


def test_a_draft_model_that_was_off_pays_for_the_prefill_of_its_kv():
    scenario = replace(QUIET, policy="fixed:2", num_requests=1, acceptance="0.0")
    engine = make_engine(scenario)
    executor = engine.executor
    curves = {"target": CostCurve.linear(0.01, 0.0), "drafts": (CostCurve.linear(0.0, 0.001),)}
    executor.time = replace(executor.time, **curves, host_seconds=0.0)
    records, _ = serve(engine, traffic_of([50], [4], [0.0]))
    # 51, 1 and 1 tokens in the first passes of three steps (the newest included), 1 in each second.
    first, second = 0.051 + 2 * 0.001, 3 * 0.001
    assert records[0].end_to_end_seconds == pytest.approx(4 * 0.01 + first + second)


@pytest.mark.parametrize(("drafter", "last"), [("model", 3), ("lookup", 6)])
def test_no_view_tells_where_an_answer_ends_and_a_draft_model_draws_eos(drafter, last):
    scenario = replace(QUIET, policy="fixed:6", drafter=drafter, num_requests=1, acceptance="1.0")
    engine, steps = make_engine(scenario), []
    engine.core.controller.on_record = steps.append
    records, totals = serve(engine, traffic_of([10], [11], [0.0]))
    # One token from the prefill, seven, then three of which the last is EOS; a lookup draft runs on
    # after it.
    assert [step.view.row_caps.tolist() for step in steps if step.view.num_rows] == [[8], [8]]
    assert [step.outcome.drafted.tolist() for step in steps if step.view.num_rows] == [[6], [last]]
    assert (records[0].num_output_tokens, records[0].finish_reason) == (11, "stop")
    assert totals.num_accepted_tokens == 6 + 3


def test_policies_meet_the_same_random_numbers_at_the_same_place():
    """Where no draft is cut short, a request emits the same numbers of tokens whatever the load."""
    alone = replace(
        QUIET, policy="fixed:4", drafter="lookup", num_requests=12, acceptance="0.6/4/4"
    )
    one_by_one = simulate(replace(alone, batch=1)).run.totals
    together = simulate(replace(alone, batch=12)).run.totals
    assert one_by_one == together and one_by_one.num_accepted_tokens > 0


@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_emitted_tokens_follow_the_closed_form(drafter):
    acceptance, length = 0.7, 5
    scenario = replace(
        QUIET,
        policy=f"fixed:{length}",
        drafter=drafter,
        acceptance=str(acceptance),
        output_tokens=2000,
        num_requests=12,
    )
    totals = simulate(scenario).run.totals
    expected = (1 - acceptance ** (length + 1)) / (1 - acceptance)
    emitted_per_row = 1 + totals.num_accepted_tokens / totals.num_decode_rows
    # About 8,000 rows of standard deviation 1.9: three standard errors are 0.07; ends of requests
    # cut a few drafts.
    assert totals.num_decode_rows > 5000
    assert emitted_per_row == pytest.approx(expected, abs=0.07)


def test_an_interrupt_keeps_what_has_finished(monkeypatch):
    def interrupt(run):
        raise KeyboardInterrupt

    serve = VirtualEngine.serve
    monkeypatch.setattr(VirtualEngine, "serve", lambda *load: serve(*load, interrupt))
    outcome = simulate(replace(BUSY, policy="off"))
    assert 1 <= outcome.summary.num_completed < 40
    assert outcome.summary.num_completed + outcome.summary.num_unfinished == 40


@pytest.mark.parametrize(
    ("recorded", "played"),
    [([0, 1, 4], [0, 1, 4, 6, 7, 10, 12]), ([100, 101], [100, 101, 102, 103, 104, 105, 106])],
)
def test_a_trace_starts_over_after_its_mean_gap_until_there_are_enough_requests(recorded, played):
    num = len(recorded)
    trace = Trace(np.array(recorded, float), 5 + np.arange(num), 1 + np.arange(num))
    prompts, outputs, arrivals = repeated(trace, 7)
    traffic = Traffic(prompts, outputs, np.zeros(7, int), arrivals)
    assert traffic.arrival_seconds.tolist() == played
    assert traffic.num_prompt_tokens.tolist() == [5 + i % num for i in range(7)]
    assert len(traffic.before(played[3] + 0.5)) == 4


def test_seconds_at_a_rate_are_filled_with_requests():
    scenario = replace(BUSY, batch=None, rate=100.0, num_requests=None, seconds=60.0)
    traffic, given = make_traffic(scenario), make_traffic(replace(scenario, num_requests=9000))
    assert len(traffic) == len(given) > 5000 and traffic.arrival_seconds[-1] > 59.0
    for name in ("num_prompt_tokens", "num_output_tokens", "class_ids", "arrival_seconds"):
        np.testing.assert_array_equal(getattr(traffic, name), getattr(given, name))
    with pytest.raises(ValueError, match="more than 10,000,000 requests: give fewer seconds"):
        make_traffic(replace(scenario, seconds=1e6))


def test_curves_that_are_nested_too_deep_are_no_json(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"deep\.json is not JSON"):
        simulate(replace(BUSY, hardware=str(path), kv_tokens=1000))


@pytest.mark.parametrize(("tagged", "class_ids"), [(False, {0}), (True, {1, 2})])
def test_requests_carry_their_class_where_tagged(tagged, class_ids):
    scenario = replace(BUSY, policy="off", tagged=tagged)
    engine, steps = make_engine(scenario), []
    engine.core.controller.on_record = steps.append
    serve(engine, make_traffic(scenario))
    assert {i for step in steps for i in step.view.class_ids.tolist()} == class_ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 1.0}, "exactly one of rate, trace and batch"),
        ({"batch": None}, "got none"),
        ({"drafter": "magic"}, "unknown drafter 'magic'"),
        ({"seconds": 3.0}, "give num_requests"),
        ({"found_share": 0.3}, "found_share 0.3 is for drafter lookup"),
        ({"found_share": 1.3, "drafter": "lookup"}, "found_share must be at least 0 and at most 1"),
        (
            {"draft_tensor_parallel": 1, "drafter": "lookup"},
            "draft_tensor_parallel 1 is for a draft model",
        ),
        ({"host_seconds": float("nan")}, "host_seconds must be at least 0 .* got nan"),
        ({"prompt_tokens": 2**63 - 1}, "prompt_tokens must be at least 1 and at most 1000000"),
        ({"batch": None, "rate": 1.0, "seconds": 0}, "seconds must be at least 1e-06 .* got 0"),
        ({"later_child_share": 0.5}, "later_child_share 0.5 is for drafter head"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(BUSY, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hardware": "abacus"}, "unknown accelerator 'abacus'"),
        ({"model": "gpt"}, "gpt"),
        ({"acceptance": "1.7"}, "acceptance '1.7'"),
        ({"acceptance": "0.7/a"}, "acceptance '0.7/a'"),
        ({"acceptance": "0.7>0.4"}, "acceptance '0.7>0.4'"),
        ({"acceptance": "eagle2"}, "acceptance 'eagle2': .* or one of eagle1, eagle3"),
        ({"policy": "best"}, "unknown policy 'best'"),
        ({"hardware": "missing.json", "kv_tokens": 100}, "cannot read the curves missing.json"),
    ],
)
def test_settings_that_cannot_be_simulated_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        simulate(replace(BUSY, **changes))
