import json
import os
import threading
from dataclasses import replace

import pytest
from json_files import read_json

from smartspec.bench.probe import normalize_base_url, parse_counters
from smartspec.bench.report import check_writable, run_json, write_json
from smartspec.workload.records import RequestRecord, SpeculationCounters
from smartspec.workload.summary import distribution, summarize, summarize_speculation

METRICS = """\
# HELP smartspec_draft_tokens_total Draft tokens made
# TYPE smartspec_draft_tokens_total counter
smartspec_draft_tokens_total{drafter="prompt-lookup"} 100.0
smartspec_draft_tokens_total{drafter="draft-model"} 20.0
smartspec_draft_tokens_created 1.7e+09
smartspec_verified_tokens_total 80.0
smartspec_accepted_tokens_total 6e+01
smartspec_decode_rows_total 40.0
"""


def record(start=0.0, ttft=0.5, end_to_end=2.5, num_tokens=11, error=None, has_usage=True):
    return RequestRecord(
        "p", "qa", start, ttft, end_to_end, 7, num_tokens, has_usage, "length", error, "text"
    )


def test_tpot_is_the_time_after_the_first_token_over_the_other_tokens():
    assert record().tpot_seconds == pytest.approx(0.2)
    assert record(num_tokens=1).tpot_seconds is None
    assert record(ttft=None).tpot_seconds is None


def test_distribution_of_hand_made_values():
    values = distribution([4.0, None, 1.0, 2.0, 3.0, 5.0])
    assert (values.mean, values.p50) == (3.0, 3.0)
    assert (values.p90, values.p99) == pytest.approx((4.6, 4.96))
    assert distribution([None]) is None


def test_summary_of_hand_made_records():
    records = [
        record(),
        record(start=1.0, end_to_end=4.0, num_tokens=9, has_usage=False),
        record(error="500 boom", num_tokens=5),
    ]
    summary = summarize(records, num_unfinished=2)
    assert (summary.num_completed, summary.num_errors, summary.num_unfinished) == (2, 1, 2)
    assert summary.errors == {"500 boom": 1} and summary.num_without_usage == 1
    assert summary.duration_seconds == 5.0
    assert (summary.num_prompt_tokens, summary.num_output_tokens) == (14, 20)
    assert summary.output_tokens_per_second == 4.0
    assert summary.requests_per_second == 0.4
    assert summary.end_to_end_seconds.mean == 3.25
    assert summary.tpot_seconds.mean == pytest.approx((0.2 + 3.5 / 8) / 2)


def test_summary_of_nothing_has_no_latencies():
    summary = summarize([])
    assert summary.num_completed == summary.output_tokens_per_second == 0
    assert summary.ttft_seconds is None


def test_counters_are_summed_over_labels():
    assert parse_counters(METRICS) == SpeculationCounters(120, 80, 60, 40)
    assert parse_counters("vllm:generation_tokens_total 5\n") is None
    in_vllm = "".join(line + "\n" for line in METRICS.splitlines() if "draft_tokens" not in line)
    assert parse_counters(in_vllm) == SpeculationCounters(80, 80, 60, 40)


def test_speculation_is_the_growth_of_the_counters():
    speculation = summarize_speculation(
        SpeculationCounters(10, 10, 10, 10), SpeculationCounters(130, 90, 70, 50)
    )
    assert speculation.counters == SpeculationCounters(120, 80, 60, 40)
    assert speculation.acceptance_rate == 0.75
    assert speculation.mean_k == 2.0


def test_speculation_without_drafts_or_after_a_restart():
    before = SpeculationCounters(10, 10, 10, 10)
    off = summarize_speculation(before, SpeculationCounters(10, 10, 10, 30))
    assert (off.acceptance_rate, off.mean_k) == (None, 0.0)
    assert summarize_speculation(before, before).mean_k is None
    assert summarize_speculation(before, SpeculationCounters(0, 0, 0, 5)) is None
    assert summarize_speculation(None, before) is None


def test_base_url_may_end_in_v1():
    assert normalize_base_url("http://h:1/v1/") == normalize_base_url("http://h:1") == "http://h:1"
    with pytest.raises(ValueError, match="must look like"):
        normalize_base_url("h:1")


def test_the_json_holds_settings_summary_and_every_request(tmp_path):
    records = [record(), record(error="500 boom")]
    path = tmp_path / "run.json"
    write_json(path, run_json({"seed": 3}, summarize(records), records))
    saved = read_json(path)
    assert saved["settings"] == {"seed": 3}
    assert saved["summary"]["ttft_seconds"] == {"mean": 0.5, "p50": 0.5, "p90": 0.5, "p99": 0.5}
    assert [(row["error"], row["tpot_seconds"]) for row in saved["requests"]] == [
        (None, pytest.approx(0.2)),
        ("500 boom", pytest.approx(0.2)),
    ]
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link_and_its_file_is_written(tmp_path):
    link, file = tmp_path / "link.json", tmp_path / "folder" / "run.json"
    file.parent.mkdir()
    link.symlink_to(file)
    check_writable(link)
    assert not file.exists(), "checking leaves no file"
    write_json(link, {"a": 1})
    assert link.is_symlink() and read_json(file) == {"a": 1}
    assert list(file.parent.iterdir()) == [file]


def test_a_pipe_gets_the_text_and_stays_a_pipe(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    check_writable(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_json(pipe, {"a": 1})
    assert pipe.is_fifo()
    reader.join(timeout=30)
    assert json.loads(read[0]) == {"a": 1}


def test_attainment_counts_the_requests_that_wanted_something():
    wanted = [
        replace(record(), tpot_target_seconds=target) for target in (1e-6, 100.0, 100.0, None)
    ]
    assert summarize(wanted).slo_attainment == pytest.approx(2 / 3)
    assert summarize([record()]).slo_attainment is None


@pytest.mark.parametrize("ttft_target", [1e-6, 100.0])
@pytest.mark.parametrize("tpot_target", [1e-6, 100.0, None])
def test_a_request_meets_its_objectives_if_it_meets_each(ttft_target, tpot_target):
    wanted = replace(record(), ttft_target_seconds=ttft_target, tpot_target_seconds=tpot_target)
    assert wanted.met_target is (1e-6 not in (ttft_target, tpot_target))
